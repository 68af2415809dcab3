"""Tiled forms of attention for CPUs: temporaries stay in the caches, weights are computed anew for the gradient."""
