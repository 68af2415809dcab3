"""One softmax over the keys of a window and a few keys that every query sees."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.attention._masks import softmax_over_valid

SMALLEST_BLOCK = 32
"""Queries of a block, where the window is narrower."""


def window_attention(
    query: Float[Tensor, "batch heads n head_dim"],
    key: Float[Tensor, "batch heads n head_dim"],
    value: Float[Tensor, "batch heads n head_dim"],
    valid: Bool[Tensor, "batch #heads n"] | None,
    *,
    left: int,
    right: int,
    extra_key: Float[Tensor, "batch heads extra head_dim"],
    extra_value: Float[Tensor, "batch heads extra head_dim"],
    extra_valid: Bool[Tensor, "batch extra"] | None,
    dropout: float,
) -> Float[Tensor, "batch heads n head_dim"]:
    """softmax(Q [K_extra ; K_near]ᵀ / √d) [V_extra ; V_near], near being the valid keys i - left … i + right.

    Blocks of queries meet the keys within reach of any of them: (batch, heads, blocks, block, left + block + right) scores. None
    as ``valid`` and as ``extra_valid`` means that all are valid; both or neither are given. A row without a key gets zeros.
    """
    n, extra = query.shape[2], extra_key.shape[2]
    block = max(left, right, SMALLEST_BLOCK)
    fill, span = -n % block, left + block + right
    rows = F.pad(query * query.shape[-1] ** -0.5, (0, 0, 0, fill))
    near_key, near_value = (F.pad(x, (0, 0, left, right + fill)).unfold(2, span, block).mT for x in (key, value))
    distance = torch.arange(span, device=query.device) - left - torch.arange(block, device=query.device)[:, None]
    real = query.new_ones(1, 1, n, dtype=torch.bool) if valid is None else valid
    allowed = (-left <= distance) & (distance <= right) & F.pad(real, (left, right + fill)).unfold(2, span, block)[..., None, :]
    seen = query.new_ones(1, extra, dtype=torch.bool) if extra_valid is None else extra_valid
    seen = seen[:, None, None, None].expand(*allowed.shape[:-1], -1)
    scores = torch.cat([(rows @ extra_key.mT).unflatten(2, (-1, block)), rows.unflatten(2, (-1, block)) @ near_key.mT], dim=-1)
    weights = F.dropout(softmax_over_valid(scores, torch.cat([seen, allowed], dim=-1)), dropout)
    far, near = weights.split([extra, span], dim=-1)
    return (far.flatten(2, 3) @ extra_value + (near @ near_value).flatten(2, 3))[:, :, :n]


def within(n: int, reach: int, key_valid: Bool[Tensor, "batch n"] | None, device: torch.device) -> Bool[Tensor, "#batch n n"]:
    """Pairs no further apart than ``reach``, of valid keys, for definitions."""
    at = torch.arange(n, device=device)
    near = (at - at[:, None]).abs() <= reach
    return near[None] if key_valid is None else near & key_valid[:, None]
