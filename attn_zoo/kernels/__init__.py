"""Fast implementations for one kind of device each: CPU tiles, Triton, FlexAttention and fla. Triton is imported only when it is
needed.
"""
