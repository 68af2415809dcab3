"""Locality-sensitive hashing of positions, and a layout of buckets in chunks that only the past decides."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

RADIX = 16
"""Buckets of one cross-polytope hash. More buckets are made by combining hashes, so that hashing costs N log N, not N²."""
MOST_HASHES = 6
"""Enough for 16⁶ buckets."""
ROTATIONS = MOST_HASHES * RADIX // 2
"""Directions drawn for each head and round; short sequences use the first few."""


def radices(buckets: int) -> list[int]:
    """A power of two as factors of at most ``RADIX``: one for each hash that is combined."""
    factors = []
    while buckets > 1:
        factors.append(min(RADIX, buckets))
        buckets //= factors[-1]
    return factors


def rotation_columns(buckets: int) -> int:
    """Directions that so many buckets use: half a bucket each, since a direction and its opposite are two."""
    return sum(factor // 2 for factor in radices(buckets))


def hash_positions(
    x: Float[Tensor, "batch heads n head_dim"], rotations: Float[Tensor, "heads rounds head_dim rotations"], buckets: int
) -> Int[Tensor, "rounds batch heads n"]:
    """Bucket of each position in each round: argmax over [x R; -x R] (Andoni et al. 2015), several of them as digits."""
    batch, heads, n, _ = x.shape
    rounds = rotations.shape[1]
    codes = x.new_zeros(batch, heads, n, rounds, dtype=torch.long)
    if buckets > 1:
        used = rotations[..., : rotation_columns(buckets)].to(x.dtype)
        turned = (x @ used.transpose(1, 2).flatten(2)).unflatten(-1, (rounds, -1))
        at = 0
        for factor in radices(buckets):
            part = turned[..., at : (at := at + factor // 2)]
            codes = codes * factor + torch.cat([part, -part], dim=-1).argmax(dim=-1)
    return codes.permute(3, 0, 1, 2)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where one round puts each position. Chunks hold positions of one bucket in their order.

    The rank of a position in its bucket counts earlier valid positions only, so which chunk it shares with whom
    depends on nothing later, and padding takes no place. Each bucket starts a chunk of its own.
    """

    slot: Int[Tensor, "batch heads n"]
    """Place of a position among ``chunks × chunk`` slots; padding lies in one place behind them."""
    position: Int[Tensor, "batch heads slots"]
    """The inverse; n where a slot is empty."""
    chunk_of: Int[Tensor, "batch heads n"]
    previous: Int[Tensor, "batch heads n"]
    """Chunk before it in the same bucket, or -1. If the layout wraps, the last chunk of the bucket is before its first."""

    @staticmethod
    def chunks(n: int, buckets: int, chunk: int) -> int:
        """Chunks that are enough however the positions fall: each bucket wastes less than one."""
        return (n + min(buckets, n) * (chunk - 1)) // chunk

    @classmethod
    def make(
        cls,
        bucket: Int[Tensor, "batch heads n"],
        valid: Bool[Tensor, "batch n"] | None,
        buckets: int,
        chunk: int,
        *,
        wraps: bool,
    ) -> Layout:
        """Lay out one round."""
        n = bucket.shape[-1]
        slots = cls.chunks(n, buckets, chunk) * chunk
        if valid is not None:
            bucket = bucket.masked_fill(~valid[:, None, :], buckets)  # padding is a bucket behind all others
        sizes = torch.zeros(*bucket.shape[:2], buckets + 1, dtype=torch.long, device=bucket.device)
        sizes.scatter_add_(2, bucket, torch.ones_like(bucket))
        starts = sizes.cumsum(-1) - sizes
        order = bucket.argsort(dim=-1, stable=True)
        place = torch.arange(n, device=bucket.device).expand_as(order)
        rank = torch.empty_like(order).scatter_(2, order, place) - starts.gather(2, bucket)
        needed = (sizes + chunk - 1) // chunk
        first = (needed.cumsum(-1) - needed).gather(2, bucket)
        chunk_of = first + rank // chunk
        slot = chunk_of * chunk + rank % chunk
        if valid is not None:
            slot = slot.masked_fill(~valid[:, None, :], slots)
        position = torch.full((*bucket.shape[:2], slots + 1), n, dtype=torch.long, device=bucket.device)
        position = position.scatter_(2, slot, place)[..., :slots]
        previous = torch.where(rank >= chunk, chunk_of - 1, -1)
        if wraps:
            count = needed.gather(2, bucket)
            previous = torch.where((rank < chunk) & (count > 1), first + count - 1, previous)
        return cls(slot, position, chunk_of, previous)


def take(x: Shaped[Tensor, "batch heads n *rest"], index: Int[Tensor, "batch heads m"]) -> Tensor:
    """Rows of ``x`` by position; a position of n takes zeros."""
    batch, heads, n = x.shape[:3]
    padded = F.pad(x, (0, 0) * (x.dim() - 3) + (0, 1))
    offset = torch.arange(batch * heads, device=x.device).view(batch, heads, 1) * (n + 1)
    rows = padded.reshape(batch * heads * (n + 1), *x.shape[3:]).index_select(0, (index + offset).flatten())
    return rows.view(*index.shape, *x.shape[3:])


def look_up(code: Int[Tensor, "batch heads n"], position: Int[Tensor, "batch heads *slots"], nowhere: int) -> Tensor:
    """An integer of each position, ``nowhere`` for a position of n."""
    return F.pad(code, (0, 1), value=nowhere).gather(2, position.flatten(2)).view_as(position)


def default_buckets(n: int, chunk: int) -> int:
    """The power of two nearest to half as many buckets as chunks: buckets of two chunks, which is what a position sees."""
    return 2 ** max(0, round(math.log2(max(1.0, n / (2 * chunk)))))
