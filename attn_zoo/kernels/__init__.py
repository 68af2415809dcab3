"""Implementations for one kind of device: CPU tiles, Triton, FlexAttention, fla. Triton is imported only where it is used."""
