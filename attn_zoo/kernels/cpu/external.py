"""External attention in blocks of positions: all sums over positions first, then the weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.kernels.cpu._tiling import CHEAP_BYTES, exported


def attend_units(
    value: Float[Tensor, "batch heads n head_dim"],
    keys: Float[Tensor, "*heads units head_dim"],
    values: Float[Tensor, "*heads units head_dim"],
    key_valid: Bool[Tensor, "batch n"] | None,
    dropout: float,
) -> Float[Tensor, "batch heads n head_dim"]:
    """Softmax over the units of scores less the logarithm of their sums over positions, times the units' values."""
    blocks: tuple[Tensor, ...] = (value,)
    if not exported():
        row_bytes = value.shape[0] * value.shape[1] * keys.shape[-2] * value.element_size()
        blocks = value.split(max(1, CHEAP_BYTES // max(1, row_bytes)), dim=2)
    precise = torch.promote_types(value.dtype, torch.float32)
    scores = [(rows @ keys.mT).to(precise) for rows in blocks]
    reached = scores
    if key_valid is not None:
        padding = (~key_valid)[:, None, :, None].split(blocks[0].shape[2], dim=2)
        reached = [s.masked_fill(p, torch.finfo(precise).min) for s, p in zip(scores, padding, strict=True)]
    sums = torch.stack([s.logsumexp(dim=2, keepdim=True) for s in reached]).logsumexp(dim=0)
    weights = (F.dropout((s - sums).softmax(dim=-1), dropout).to(value.dtype) for s in scores)
    return torch.cat([w @ values for w in weights], dim=2).to(value.dtype)
