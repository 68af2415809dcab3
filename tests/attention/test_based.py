"""Based: nearly softmax attention at small scores."""

from __future__ import annotations

import torch

from attn_zoo import Geometry, build_attention

HEADS, D, N = 2, 6, 40


def test_small_scores_give_nearly_softmax_attention():
    geometry = Geometry(HEADS, D, N, N, causal=True)
    based, softmax = build_attention("based", geometry, channels=D).double(), build_attention("softmax", geometry).double()
    query, key, value = (torch.randn(2, HEADS, N, D, dtype=torch.float64) for _ in range(3))
    gaps = [(based(s * query, key, value) - softmax(s * query, key, value)).abs().max().item() for s in (0.1, 0.01)]
    assert 0 < gaps[1] < 2e-3 * gaps[0], "the first term left out is cubic in the scores"
