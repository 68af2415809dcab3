"""Initialisation of Linformer's projections E and F for given keys.

E and F are k × n matrices that project n positions onto k. Let M be the n × n second moment of the keys K: K Kᵀ, averaged over
texts and heads. An orthogonal projection P of the keys onto k directions preserves the share tr(P M) / tr(M) of M. The best
k directions are the leading eigenvectors U of M. Their basis also matters, because softmax treats the k projected keys alike.

Let Q be the queries and V the values. If E Eᵀ = (k / n) I and E 1 = 1, softmax(Q (E K)ᵀ) E V equals softmax(Q (P K)ᵀ) P V to
first order in the scores. I is the identity, and 1 is the vector of ones. Means over k segments of n / k positions fulfil both
conditions. The initialisation ``spectrum`` is E = √(k / n) R Uᵀ, where the rotation R brings E as near to these means as
possible. This matrix fulfils both conditions if 1 lies in the span of U. In the initialisation ``stretches``, E computes means
over segments of different lengths.
"""

from __future__ import annotations

from enum import Enum

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.contract.length_maps import equal_bounds, segment_means


class Start(Enum):
    """Kind of initialisation of E and F, the matrices with which Linformer shortens keys and values."""

    stretches = "stretches"
    """Means over k segments, with the bounds that preserve most of the second moment of the keys."""
    spectrum = "spectrum"
    """Leading k eigenvectors of the second moment of the keys, rotated to be as near to means over equal segments as possible."""
    pooling = "pooling"
    """Means over k equal segments, for any keys."""
    random = "random"
    """Random matrices that the mechanism itself draws."""


def initial_rows(moment: Float[Tensor, "n n"], k: int, how: Start) -> Float[Tensor, "k n"]:
    """Return the initial value of the matrix E with which Linformer shortens n keys to k.

    Args:
        moment: second moment of the keys. Entry (i, j) is the inner product of the keys at positions i and j, summed or averaged
            over texts.
        k: projected length.
        how: kind of initialisation other than ``random``, as the mechanism itself draws random matrices.
    """
    n = len(moment)
    equal = segment_means(equal_bounds(n, k))
    if how is Start.pooling:
        return equal
    if how is Start.stretches:
        return segment_means(best_bounds(moment, k))
    vectors = torch.linalg.eigh(moment.double()).eigenvectors[:, -k:]
    left, _, right = torch.linalg.svd(equal @ vectors)
    return (k / n) ** 0.5 * (left @ right) @ vectors.T


def best_bounds(moment: Float[Tensor, "n n"], k: int) -> list[int]:
    """Return the bounds that cut n positions into the k segments whose means preserve most of the second moment M (``moment``).

    A segment preserves the sum of M over all pairs of its positions, divided by its length. Dynamic programming maximises the
    total over all segments, in k steps over all pairs of bounds.
    """
    n = len(moment)
    corner = torch.zeros(n + 1, n + 1, dtype=torch.float64)
    corner[1:, 1:] = moment.double().cumsum(0).cumsum(1)
    diagonal = corner.diagonal()
    block = diagonal[None, :] - corner - corner.T + diagonal[:, None]  # sum of M over all pairs of positions in a segment
    at = torch.arange(n + 1)
    length = at[None, :] - at[:, None]
    gain = torch.where(length > 0, block / length.clamp(min=1), -torch.inf)
    best, predecessors = gain[0], []
    for _ in range(k - 1):
        best, before = (best[:, None] + gain).max(dim=0)
        predecessors.append(before)
    bounds = [n]
    for before in reversed(predecessors):
        bounds.append(int(before[bounds[-1]]))
    return [0, *reversed(bounds)]
