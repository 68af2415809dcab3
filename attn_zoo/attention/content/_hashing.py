"""Locality-sensitive hashing of positions, and a layout of buckets in chunks that only the past decides."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from attn_zoo.kernels.cpu.lsh import hash_tiled

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


def lsh_buckets(
    x: Float[Tensor, "batch heads n head_dim"], rotations: Float[Tensor, "heads rounds head_dim rotations"], buckets: int
) -> Int[Tensor, "rounds batch heads n"]:
    """Bucket of each position in each round: argmax over [x R; -x R] (Andoni et al. 2015), several of them as digits."""
    digits, half = radices(buckets), RADIX // 2
    rotated = torch.einsum("bhnd,hrdc->rbhnc", x, rotations[..., : rotation_columns(buckets)].to(x.dtype))
    # The last digit may have fewer directions; zeros in the place of others are never larger.
    rotated = F.pad(rotated, (0, len(digits) * half - rotated.shape[-1])).unflatten(-1, (len(digits), half))
    (high, at_high), (low, at_low) = rotated.max(dim=-1), rotated.min(dim=-1)
    radix = torch.tensor(digits, dtype=torch.long, device=x.device)
    nearest = torch.where(-low > high, at_low + radix // 2, at_high)
    return (nearest * (buckets // radix.cumprod(0))).sum(dim=-1)  # the first digit counts most


def hash_positions(
    x: Float[Tensor, "batch heads n head_dim"], rotations: Float[Tensor, "heads rounds head_dim rotations"], buckets: int
) -> Int[Tensor, "rounds batch heads n"]:
    """``lsh_buckets`` in tiles for a CPU's caches."""
    return hash_tiled(x, rotations[..., : rotation_columns(buckets)], radices(buckets))


@dataclass(frozen=True, slots=True)
class Layout:
    """Order of positions in all rounds: by bucket, in chunks that hold positions of one bucket in their order.

    The rank of a position in its bucket counts earlier valid positions only, so which chunk it shares with whom
    depends on nothing later, and padding takes no place. Each bucket starts a chunk of its own.
    """

    slot: Int[Tensor, "rounds batch heads n"]
    """Place of a position among ``chunks × chunk`` slots; padding lies in one place behind them."""
    position: Int[Tensor, "rounds batch heads slots"]
    """The inverse; n where a slot is empty."""
    before: Int[Tensor, "rounds batch heads chunks"]
    """Chunk before each one in the same bucket, or -1. If the layout wraps, the last chunk of a bucket is before its first."""

    @staticmethod
    def chunks(n: int, buckets: int, chunk: int) -> int:
        """Chunks that are enough however the positions fall: each bucket wastes less than one."""
        return (n + min(buckets, n) * (chunk - 1)) // chunk

    @classmethod
    def make(
        cls,
        bucket: Int[Tensor, "rounds batch heads n"],
        valid: Bool[Tensor, "batch n"] | None,
        buckets: int,
        chunk: int,
        *,
        wraps: bool,
    ) -> Layout:
        """Lay out all rounds."""
        front, n = bucket.shape[:-1], bucket.shape[-1]
        count = cls.chunks(n, buckets, chunk)
        if valid is not None:
            bucket = bucket.masked_fill(~valid[:, None, :], buckets)  # padding is a bucket behind all others
        bucket = bucket.flatten(0, 2)
        row = torch.arange(len(bucket), device=bucket.device)[:, None]
        sizes = bucket.new_zeros(len(bucket), buckets + 1).scatter_add(1, bucket, torch.ones_like(bucket))
        starts = sizes.cumsum(-1) - sizes + row * n
        # One long sort of all rows takes half the time of one for each.
        order = (bucket + row * (buckets + 1)).flatten().argsort(stable=True)
        place = torch.arange(len(order), device=bucket.device)
        rank = torch.empty_like(order).scatter(0, order, place).view_as(bucket) - starts.gather(1, bucket)
        needed = (sizes + chunk - 1) // chunk
        ends = needed.cumsum(-1)
        slot = (ends - needed).gather(1, bucket) * chunk + rank
        if valid is not None:
            slot = slot.masked_fill(bucket == buckets, count * chunk)
        position = bucket.new_full((len(bucket), count * chunk + 1), n)
        position = position.scatter(1, slot, torch.arange(n, device=bucket.device).expand_as(slot))
        found = cls._before(needed[:, :-1], ends[:, :-1].contiguous(), count, wraps=wraps)
        return cls(*(x.int().unflatten(0, front) for x in (slot, position[:, :-1], found)))

    def pairs(self) -> tuple[Int[Tensor, "rounds batch heads chunks c"], Int[Tensor, "rounds batch heads chunks 2*c"]]:
        """Positions of each chunk, and of the chunk before it and itself; n for none."""
        n, chunks = self.slot.shape[3], self.before.shape[3]
        own = self.position.long().unflatten(3, (chunks, -1))
        before = self.before.long().masked_fill(self.before < 0, chunks)[..., None].expand_as(own)
        return own, torch.cat([F.pad(own, (0, 0, 0, 1), value=n).gather(3, before), own], dim=4)

    @staticmethod
    def _before(
        needed: Int[Tensor, "rows buckets"], ends: Int[Tensor, "rows buckets"], count: int, *, wraps: bool
    ) -> Int[Tensor, "rows chunks"]:
        """From the chunks of each bucket and the one behind its last."""
        chunk = torch.arange(count, device=ends.device).expand(len(ends), -1).contiguous()
        of = torch.searchsorted(ends, chunk, right=True).clamp(max=ends.shape[1] - 1)  # chunks that no bucket needs are empty
        size, end = needed.gather(1, of), ends.gather(1, of)
        alone = torch.where(size > 1, end - 1, -1) if wraps else torch.full_like(chunk, -1)
        return torch.where(chunk > end - size, chunk - 1, alone)


def take(x: Shaped[Tensor, "batch heads n *rest"], index: Int[Tensor, "*rounds batch heads m"]) -> Tensor:
    """Rows of ``x`` by position, a position of n takes zeros. Its axes after the heads are those of ``index``, then the rest."""
    batch, heads, n = x.shape[:3]
    padded = F.pad(x, (0, 0) * (x.dim() - 3) + (0, 1))
    offset = torch.arange(batch * heads, device=x.device).view(batch, heads, 1) * (n + 1)
    rows = padded.reshape(batch * heads * (n + 1), *x.shape[3:]).index_select(0, (index + offset).flatten())
    return rows.view(*index.shape, *x.shape[3:])


def default_buckets(n: int, chunk: int) -> int:
    """The power of two nearest to half as many buckets as chunks: buckets of two chunks, which is what a position sees."""
    return 2 ** max(0, round(math.log2(max(1.0, n / (2 * chunk)))))
