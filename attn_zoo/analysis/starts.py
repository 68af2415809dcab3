"""Initialisation of Linformer's projections E and F for given keys. It uses means over segments or the second moments of the keys.

E and F are k × n matrices that project n positions onto k. Let M be the n × n second moment of the keys K: K Kᵀ, averaged over
real text and heads. An orthogonal projection P of the keys onto k directions preserves the share tr(P M) / tr(M). The best k
directions are the leading eigenvectors U of M. But softmax treats the k projected keys alike, so the choice of the basis also
matters.

To first order in the scores, softmax(Q (E K)ᵀ) E V equals softmax(Q Kᵀ) V on keys and values projected by P if two conditions hold:
E Eᵀ = (k / n) I and E 1 = 1. Here Q are the queries, V the values, I is the identity, and 1 is the vector of ones. Means over k
segments of n / k positions fulfil both conditions. So does √(k / n) R Uᵀ with a rotation R that equalises the row sums, if 1 lies
in the span of U. This is the initialisation ``spectrum``. The initialisation ``stretches`` chooses among means over unequal
segments, which are averages for any scores.
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
    """Means over the k segments of positions that preserve most of the second moment."""
    spectrum = "spectrum"
    """Leading k eigenvectors of the second moment, rotated to be as near to means over equal segments as possible."""
    pooling = "pooling"
    """Means over equal segments, independent of the text."""
    random = "random"
    """Random initialisation that the mechanism itself draws."""


def initial_rows(moment: Float[Tensor, "n n"], k: int, how: Start) -> Float[Tensor, "k n"]:
    """Return the initial value of the matrix E with which Linformer shortens n keys to k.

    Args:
        moment: second moment of the keys: for each pair of positions, the inner product of their keys, summed or averaged over
            texts.
        k: projected length, which is the number of rows of E.
        how: kind of initialisation.

    Raises:
        ValueError: ``how`` is ``random``, which is left to the mechanism.
    """
    n = len(moment)
    equal = segment_means(equal_bounds(n, k))
    if how is Start.pooling:
        return equal
    if how is Start.stretches:
        return segment_means(best_bounds(moment, k))
    if how is Start.spectrum:
        vectors = torch.linalg.eigh(moment.double()).eigenvectors[:, -k:]
        left, _, right = torch.linalg.svd(equal @ vectors)
        return (k / n) ** 0.5 * (left @ right) @ vectors.T
    raise ValueError(
        "the initialisation must not be 'random', because the mechanism itself draws this one. Choose another initialisation"
    )


def best_bounds(moment: Float[Tensor, "n n"], k: int) -> list[int]:
    """Return the bounds that cut n positions into k segments so that the means over the segments preserve most of the second moment
    M (``moment``).

    The amount that is preserved is the sum over segments of 1ᵀ M 1 / length, where M is restricted to the segment and 1 is the
    vector of ones. Dynamic programming in k steps over all pairs of bounds finds the maximum.
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
