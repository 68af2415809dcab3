"""Attention in tiles for CPUs. Temporary tensors stay in the caches, and the backward pass recomputes weights."""
