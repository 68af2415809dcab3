"""Tiled forms of attention for CPUs: temporaries stay in the caches, weights are recomputed in the backward pass."""
