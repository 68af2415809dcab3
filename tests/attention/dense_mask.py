"""Reference attention with a dense mask over all pairs, and a comparison of a mechanism with it: outputs, gradients, padding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from written_out import require_same_in

from attn_zoo import Attention

HEADS, HEAD_DIM = 2, 8


def masked_attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    """softmax(Q Kᵀ / √d) V over the pairs in ``allowed``, (batch or 1, heads or 1, n, n); zeros for queries without keys."""
    scores = torch.einsum("bhid,bhjd->bhij", query, key) / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1).nan_to_num(0.0)
    return torch.einsum("bhij,bhjd->bhid", weights, value)


def assert_sees(built: Attention, n: int, sees: Callable[[int, int, int], bool]) -> None:
    """Assert that a float64 mechanism of ``HEADS`` heads equals masked attention, in its definition, ``eager`` and tiles: outputs
    and gradients, also with padding.

    Args:
        sees: returns whether, in a head, a query sees a key; the causal mask is added.
    """
    causal = built.geometry.causal
    pairs = [[[sees(h, i, j) and (j <= i or not causal) for j in range(n)] for i in range(n)] for h in range(HEADS)]
    mask = torch.tensor(pairs)
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(3, HEADS, n, HEAD_DIM, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]
    holes = torch.arange(n) < torch.tensor([n, max(1, n // 2), 0])[:, None]
    holes[0, 2::5] = False
    for valid in (None, holes):
        query, key, value = inputs
        want = masked_attention(query, key, value, mask[None] if valid is None else mask & valid[:, None, None])
        forms = [form for form in ("definition", "eager", "tiled") if form in ("definition", *built.card.implementations)]
        require_same_in(forms, built, partial(built, *inputs, key_valid=valid), want, inputs)
