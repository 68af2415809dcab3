"""Fast implementations, each for one kind of device: CPU tiles, Triton, FlexAttention and fla. Triton is imported only when it
is needed.
"""
