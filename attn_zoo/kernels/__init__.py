"""Implementations for one kind of machine: CPU tiles, Triton, FlexAttention, fla. Triton is imported only where it is used."""
