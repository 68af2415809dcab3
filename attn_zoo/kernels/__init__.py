"""Triton kernels, one folder per mechanism. Nothing here is imported until an implementation called ``triton`` is built."""
