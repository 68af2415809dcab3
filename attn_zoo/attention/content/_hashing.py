"""Locality-sensitive hashing of positions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from attn_zoo.contract import Bound
from attn_zoo.kernels.cpu.lsh import hash_tiled
from attn_zoo.shapes import Queries

# Hashing n positions to about n buckets costs n log n with combined hashes, and n² with a single one.
RADIX, MOST_HASHES = 16, 6
"""Largest number of buckets of one cross-polytope hash, and largest number of hashes that are combined."""
ROTATIONS = MOST_HASHES * RADIX // 2
"""Number of directions drawn for each head and round, enough for the largest number of buckets."""
BUCKETS = Bound(
    lambda count: count == 0 or (1 <= count <= RADIX**MOST_HASHES and count & (count - 1) == 0),
    f"must be a power of two up to {RADIX**MOST_HASHES}, or 0 (the number follows the length)",
)
Rotations = Float[Tensor, "heads rounds head_dim rotations"]


def default_buckets(n: int, chunk: int) -> int:
    """Return the power of two nearest to n / (2 chunk), the default number of buckets. A bucket then fills the two chunks that a
    query sees.
    """
    return 2 ** max(0, round(math.log2(max(1.0, n / (2 * chunk)))))


def radices(buckets: int) -> list[int]:
    """Return the factors of ``buckets``, a power of two. A factor is the number of buckets of one of the combined hashes, and is at
    most ``RADIX``.
    """
    whole, rest = divmod(buckets.bit_length() - 1, RADIX.bit_length() - 1)
    return [RADIX] * whole + [2**rest] * (rest > 0)


def rotation_columns(buckets: int) -> int:
    """Return the number of random directions needed to hash into this number of buckets. A hash needs half as many directions as
    buckets, because a direction and its opposite are two buckets.
    """
    return sum(factor // 2 for factor in radices(buckets))


def lsh_buckets(x: Queries, rotations: Rotations, buckets: int, tiled: bool = False) -> Int[Tensor, "rounds batch heads queries"]:
    """Return the bucket of each position in each round. Each round has its own rotations R, given by ``rotations``.

    With at most ``RADIX`` buckets, the bucket is the argmax over [x R; -x R] (Andoni et al. 2015). With more buckets, a round
    combines several such hashes, and each of them gives one digit of the bucket's number.
    """
    digits, half, rotations = radices(buckets), RADIX // 2, rotations[..., : rotation_columns(buckets)]
    if tiled:
        return hash_tiled(x, rotations, digits)
    rotated = torch.einsum("bhnd,hrdc->rbhnc", x, rotations.to(x.dtype))
    # The last digit may have fewer directions; the zeros in place of the missing ones never win the argmax.
    rotated = F.pad(rotated, (0, len(digits) * half - rotated.shape[-1])).unflatten(-1, (len(digits), half))
    (high, at_high), (low, at_low) = rotated.max(dim=-1), rotated.min(dim=-1)
    radix = torch.tensor(digits, dtype=torch.long, device=x.device)
    nearest = torch.where(-low > high, at_low + radix // 2, at_high)
    return (nearest * (buckets // radix.cumprod(0))).sum(dim=-1)  # the first digit is the most significant


def take(x: Shaped[Tensor, "batch heads n *rest"], index: Int[Tensor, "*rounds_batch_heads_places"], places: int = 1) -> Tensor:
    """Return the rows of ``x`` at the positions in ``index``, and zeros if a position is n, the length of ``x``. ``places`` is the
    number of axes of ``index`` after the axis of heads.
    """
    batch, heads, n = x.shape[:3]
    padded = F.pad(x, (0, 0) * (x.dim() - 3) + (0, 1))
    offset = torch.arange(batch * heads, device=x.device).view(batch, heads, *[1] * places) * (n + 1)
    rows = padded.reshape(batch * heads * (n + 1), *x.shape[3:]).index_select(0, (index + offset).flatten())
    return rows.view(*index.shape, *x.shape[3:])
