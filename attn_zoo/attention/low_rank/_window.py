"""Softmax attention to the keys of a window, and to a few other keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.contract.masks import Sinks, softmax_over_valid
from attn_zoo.kernels.cpu.window import banded_attention
from attn_zoo.shapes import Compressed, CompressedValid, Keys, KeyValid

SMALLEST_BLOCK = 32
"""Smallest number of queries in a block, even if the window is narrow."""

Rows = Float[Tensor, "batch heads keys head_dim"]
"""Queries or outputs, if there are as many queries as keys."""


class Few(NamedTuple):
    """A few keys and values that queries see beside their window, such as projected ones. ``valid`` is True for keys that a query
    sees; None means all keys.
    """

    key: Compressed
    value: Compressed
    valid: CompressedValid | Bool[Tensor, "#batch #heads queries r"] = None


def attend_near(
    query: Rows, key: Keys, value: Keys, valid: KeyValid, few: Few, *, window: int, dropout: float, tiled: bool
) -> Rows:
    """Return softmax(Q [K_few ; K_near]ᵀ / √d) [V_few ; V_near], where K_few are the keys of ``few``, and K_near the valid keys of
    the window around each query.
    """
    reach = min(window // 2, query.shape[2] - 1)
    if few.valid is None and valid is not None:
        few = few._replace(valid=valid.any(dim=1, keepdim=True).expand(-1, few.key.shape[2]))
    near = None if valid is None else valid[:, None]
    if tiled:
        out = banded_attention(query, key, value, near, *few, left=reach, right=reach, dropout=dropout)
    else:
        out = window_attention(query, key, value, near, few, left=reach, right=reach, dropout=dropout)
    return out.to(value.dtype)


def window_attention(
    query: Rows,
    key: Keys,
    value: Keys,
    valid: Bool[Tensor, "batch 1 keys"] | None,
    few: Few,
    *,
    left: int,
    right: int,
    dropout: float,
    sinks: Sinks = None,
) -> Rows:
    """Return the outputs of ``attend_near``, computed in blocks of queries. Each block is compared with its own keys, and with the
    ``left`` keys before and the ``right`` keys after them.
    """
    n, r, block = query.shape[2], few.key.shape[2], window_block(left)
    fill, span = -n % block, left + block + right
    rows = F.pad(query * query.shape[-1] ** -0.5, (0, 0, 0, fill))
    near_key, near_value = (F.pad(x, (0, 0, left, right + fill)).unfold(2, span, block).mT for x in (key, value))
    distance = torch.arange(span, device=query.device) - left - torch.arange(block, device=query.device)[:, None]
    real = query.new_ones(1, 1, n, dtype=torch.bool) if valid is None else valid
    allowed = (-left <= distance) & (distance <= right) & F.pad(real, (left, right + fill)).unfold(2, span, block)[..., None, :]
    seen = query.new_ones(1, r, dtype=torch.bool) if few.valid is None else few.valid
    seen = seen[:, None, None, None] if seen.dim() == 2 else F.pad(seen, (0, 0, 0, fill)).unflatten(2, (-1, block))
    seen = seen.expand(*allowed.shape[:-1], -1)
    scores = torch.cat([(rows @ few.key.mT).unflatten(2, (-1, block)), rows.unflatten(2, (-1, block)) @ near_key.mT], dim=-1)
    weights = F.dropout(softmax_over_valid(scores, torch.cat([seen, allowed], dim=-1), sinks), dropout)
    far, near = weights.split([r, span], dim=-1)
    return (far.flatten(2, 3) @ few.value + (near @ near_value).flatten(2, 3))[:, :, :n]


def window_block(left: int) -> int:
    """Return the number of queries in a block of ``window_attention`` with this ``left``."""
    return max(left, SMALLEST_BLOCK)


def naive_attention(
    query: Rows, key: Keys, value: Keys, near: Bool[Tensor, "#batch #heads keys keys"], few: Few, sinks: Sinks = None
) -> Rows:
    """Return the outputs of ``attend_near`` from n × (r + n) weights, where r is the number of keys in ``few``. ``near`` is True
    for each pair of a query and a key that the query sees.
    """
    seen = near.new_ones(1, few.key.shape[2]) if few.valid is None else few.valid
    seen = seen[:, None, None] if seen.dim() == 2 else seen
    allowed = torch.cat([seen.expand(*near.shape[:-1], -1), near], dim=-1)
    scores = query @ torch.cat([few.key, key], dim=2).mT / query.shape[-1] ** 0.5
    return softmax_over_valid(scores, allowed, sinks) @ torch.cat([few.value, value], dim=2)


def within(n: int, reach: int, key_valid: KeyValid, device: torch.device) -> Bool[Tensor, "#batch 1 n n"]:
    """Return a mask that is True for each query and each valid key at most ``reach`` positions away."""
    at = torch.arange(n, device=device)
    near = ((at - at[:, None]).abs() <= reach)[None, None]
    return near if key_valid is None else near & key_valid[:, None, None]
