"""Luna's causal attention in blocks of positions; only the sums between blocks are saved for the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attn_zoo.kernels.cpu._chunks import filled, in_blocks, into_chunks
from attn_zoo.shapes import Keys, Queries


def attend_packed_past(
    query: Queries, key: Keys, value: Keys, shares: Float[Tensor, "batch heads n l"], count: Int[Tensor, "#batch 1 n 1"]
) -> Queries:
    """Compute yₜ = uₜ Σⱼ aⱼ vⱼᵀ / t with uₜ = softmax(Σⱼ (qₜ·kⱼ) aⱼ / (t √d)), aⱼ in ``shares``, t in ``count``."""
    batch, heads, n, d = query.shape
    start = query.new_zeros(batch, heads, shares.shape[3], 2 * d)
    out, _ = in_blocks(partial(_past, filled(n)[0]), start, query, key, value, shares, count)
    return out


def _past(chunk: int, rows: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the outputs of some positions from the sums Σ a [k v]ᵀ before them, and within chunks directly."""
    query, key, value, shares, count = (into_chunks(x, chunk) for x in rows)
    both = torch.cat([key, value], dim=-1)
    before = []
    for summed in (shares.mT @ both).unbind(2):
        before.append(state)
        state = state + summed
    keys, values = torch.stack(before, dim=2).chunk(2, dim=-1)
    share = count.clamp(min=1).to(query.dtype).reciprocal()
    query = query * query.shape[-1] ** -0.5
    scores = (query @ key.mT).tril() @ shares + query @ keys.mT
    weights = (scores * share).softmax(dim=-1)
    out = ((weights @ shares.mT).tril() @ value + weights @ values) * share
    return out.flatten(2, 3)[:, :, : rows[0].shape[2]], state
