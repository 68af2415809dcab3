"""Attention of each query to the keys within reach on its left and right, computed in blocks and never as N × N."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.attention.blocks import CHEAP_BYTES
from attn_zoo.attention.kept import FLOAT, softmax_bytes, split_bytes
from attn_zoo.attention.masks import softmax_over_valid

SMALLEST_BLOCK = 16


def plan(length: int, left: int, right: int) -> tuple[int, int, int]:
    """How a band is cut: number of blocks, queries a block, keys a block sees.

    A block sees its own positions and what is in reach of its ends. Short sequences are one block.
    Blocks of a quarter of the reach compute a quarter more than the band holds.
    """
    block = max(SMALLEST_BLOCK, math.ceil((left + right) / 4))
    slab = block + left + right
    return (1, length, length) if length <= slab else (math.ceil(length / block), block, slab)


def band_flops(length: int, left: int, right: int, extra: int) -> int:
    """FLOPs per head and unit of head_dim: scores and weighted sums, over the slabs and ``extra`` keys everyone sees."""
    blocks, rows, slab = plan(length, left, right)
    return 4 * blocks * rows * (slab + extra)


def band_bytes(heads: int, dilation: int, head_dim: int, length: int, left: int, right: int, extra: int) -> int:
    """Bytes of float32 that autograd keeps of ``banded_attention`` for one example, ``dilation`` sequences a head.

    Scaled queries, slabs of keys and values, extra keys and values, weights. Queries, keys and values are made for the call,
    and extra ones are views of what a head has.
    """
    blocks, rows, slab = plan(length, left, right)
    folded, columns = heads * dilation, slab + extra
    every = folded * blocks * rows
    kept = softmax_bytes(every, columns, masks=every * columns)
    one_set_of_extras = 2 * FLOAT * folded * extra * head_dim
    if blocks == 1:
        in_place = heads == 1 or dilation == 1
        return kept + 3 * FLOAT * folded * length * head_dim + (0 if in_place else one_set_of_extras)
    group = blocks_together(folded * rows * slab * FLOAT)
    sizes = [min(group, blocks - start) for start in range(0, blocks, group)]
    if heads > 1:  # extra ones of one head are the same for all that is compared, so a view does
        kept += one_set_of_extras * (sum(size for size in sizes if size > 1) + (1 in sizes and dilation > 1))
    padded = folded * (blocks * rows + left + right) * head_dim if left + right else None
    queries = split_bytes(folded, blocks, group, rows * head_dim, products=2 if extra else 1)
    return kept + queries + 2 * split_bytes(folded, blocks, group, slab * head_dim, base=padded)


def blocks_together(block_bytes: int) -> int:
    """Blocks whose scores take ``block_bytes`` each that are compared at once."""
    return max(1, CHEAP_BYTES // block_bytes)


def banded_attention(
    query: Float[Tensor, "batch heads n head_dim"],
    key: Float[Tensor, "batch heads n head_dim"],
    value: Float[Tensor, "batch heads n head_dim"],
    valid: Bool[Tensor, "batch #heads n"],
    *,
    left: int,
    right: int,
    extra_key: Float[Tensor, "batch heads extra head_dim"],
    extra_value: Float[Tensor, "batch heads extra head_dim"],
    extra_valid: Bool[Tensor, "batch extra"],
    dropout: float,
) -> Float[Tensor, "batch heads n head_dim"]:
    """One softmax over the valid keys i - left … i + right and the valid extra keys; zeros where there is none.

    Keys outside ``valid`` have no weight; extra keys must be invalid in ``valid`` if they are within reach, or they
    would count twice.
    """
    length = query.shape[2]
    blocks, rows, slab = plan(length, left, right)
    query = query * query.shape[-1] ** -0.5
    if blocks == 1:
        offset = torch.arange(length, device=query.device)
        distance = offset[None, :] - offset[:, None]
        near = (distance >= -left) & (distance <= right)
        allowed = near & valid[:, :, None, :]
        return _attend(query, key, value, allowed, extra_key, extra_value, extra_valid, dropout)

    fill = blocks * rows - length
    slabs = [F.pad(t, (0, 0, left, fill + right)).unfold(2, slab, rows) for t in (key, value)]
    seen = F.pad(valid, (left, fill + right)).unfold(2, slab, rows)
    distance = torch.arange(slab, device=query.device)[None, :] - torch.arange(rows, device=query.device)[:, None]
    near = (distance >= 0) & (distance <= left + right)
    stacked = F.pad(query, (0, 0, 0, fill)).unflatten(2, (blocks, rows))
    group = blocks_together(query.shape[0] * query.shape[1] * rows * slab * query.element_size())
    out = [
        _attend(
            q, k.mT, v.mT, near & s[:, :, :, None, :], extra_key[:, :, None], extra_value[:, :, None], extra_valid[:, None], dropout
        )
        for q, k, v, s in zip(*(t.split(group, dim=2) for t in (stacked, *slabs, seen)), strict=True)
    ]
    return torch.cat(out, dim=2).flatten(2, 3)[:, :, :length]


def _attend(
    query: Float[Tensor, "*lead rows head_dim"],
    key: Float[Tensor, "*lead keys head_dim"],
    value: Float[Tensor, "*lead keys head_dim"],
    allowed: Bool[Tensor, "..."],
    extra_key: Float[Tensor, "..."],
    extra_value: Float[Tensor, "..."],
    extra_valid: Bool[Tensor, "..."],
    dropout: float,
) -> Float[Tensor, "*lead rows head_dim"]:
    """One joint softmax over the keys of a block and the extra keys."""
    scores = query @ key.mT
    extra = extra_key.shape[-2]
    if not extra:
        return F.dropout(softmax_over_valid(scores, allowed), dropout) @ value
    both = torch.cat([query @ extra_key.mT, scores], dim=-1)
    shape = (*allowed.shape[:-1], extra)
    allowed = torch.cat([extra_valid[:, None, ..., None, :].expand(shape), allowed], dim=-1)
    weights = F.dropout(softmax_over_valid(both, allowed), dropout)
    return weights[..., :extra] @ extra_value + weights[..., extra:] @ value
