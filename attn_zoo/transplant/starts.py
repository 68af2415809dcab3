"""Initialisation of E and F: from the second moments of the teacher's keys along the length, by means, or at random.

With M = E[K Kᵀ], the n × n second moment over real text, heads and channels, an orthogonal projection P of the keys on k
directions preserves tr(P M) of tr(M). M's leading eigenvectors U are the best k directions. But softmax gives the k projected
keys equal prior weight, so that the basis matters. To first order in the scores, softmax(Q (E K)ᵀ) E V equals softmax(Q Kᵀ) V
with so projected keys and values if E Eᵀ = (k / n) I and E 1 = 1. Means over k segments of n / k positions fulfil both, and so
does √(k / n) R Uᵀ with a rotation R that equalises the row sums, if 1 lies in the span of U. This is the start ``spectrum``; the
start ``stretches`` chooses among means, which are averages at any scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.analysis.captured import attention_inputs
from attn_zoo.attention.low_rank._projections import LowRankAttention, MatrixMap, Sharing
from attn_zoo.contract import Attention, UnsupportedError
from attn_zoo.transplant.encoder import BATCH
from attn_zoo.transplant.passages import Passages


class Start(Enum):
    """Initialisation of E and F."""

    stretches = "stretches"
    """Means over the k segments of positions that preserve most of the second moment."""
    spectrum = "spectrum"
    """Leading k eigenvectors of the second moment, rotated to be nearest to means over equal segments."""
    pooling = "pooling"
    """Means over equal segments, independent of the text."""
    random = "random"
    """Random initialisation of the mechanism itself."""


@torch.no_grad()
def second_moments(model: Any, passages: Passages) -> list[Float[Tensor, "heads n n"]]:
    """Second moments E[K Kᵀ] of each head of each layer, float64; each entry is a mean over passages with both positions real."""
    sums: list[Tensor] = []
    count = torch.zeros(passages.ids.shape[1], passages.ids.shape[1], dtype=torch.float64)
    for batch in passages.batches(BATCH):
        layers = attention_inputs(model, batch.call())
        real = batch.valid.double()
        count += real.T @ real
        for at, layer in enumerate(layers):
            key = (layer.key * batch.valid[:, None, :, None]).double()
            moment = torch.einsum("bhid,bhjd->hij", key, key)
            if len(sums) <= at:
                sums.append(moment)
            else:
                sums[at] += moment
    return [moment / count.clamp(min=1) for moment in sums]


def takes_start(mechanism: Attention) -> bool:
    """Return whether the mechanism has matrices E and F along the length."""
    return isinstance(mechanism, LowRankAttention) and all(isinstance(map_, MatrixMap) for map_ in mechanism.maps)


@torch.no_grad()
def start(stack: Sequence[Attention], moments: Sequence[Float[Tensor, "heads n n"]], how: Start) -> list[float]:
    """Initialise E and F of every layer, with F = E: projected value s is weighted by the query's score with projected key s.

    Args:
        stack: mechanisms of one model, in order; a matrix shared by layers is computed from the sum of their moments.
        moments: second moments of the same layers.

    Returns:
        For each layer the share of its keys' second moment that E preserves, averaged over heads.

    Raises:
        UnsupportedError: a mechanism has no such matrices.
    """
    kept = []
    for at, (mechanism, moment) in enumerate(zip(stack, moments, strict=True)):
        if not isinstance(mechanism, LowRankAttention) or not takes_start(mechanism):
            raise UnsupportedError(f"{mechanism.card.name} has no matrices E and F to start; leave init away")
        whole = torch.stack(list(moments)).sum(dim=0) if mechanism.options.sharing is Sharing.layerwise else moment
        shares = []
        for map_ in mechanism.maps:
            assert isinstance(map_, MatrixMap)
            owner = mechanism.options.sharing is not Sharing.layerwise or at == 0
            for copy in range(map_.weight.shape[1]):
                own = [map_.heads[copy]] if map_.weight.shape[1] > 1 else list(map_.heads)
                if owner and how is not Start.random:
                    rows = initial_rows(whole[own].sum(dim=0), map_.results, how)
                    map_.weight[:, copy] = rows.to(map_.weight)
                shares.append(_kept(map_.weight[0, copy].double(), moment[own].sum(dim=0)) * len(own))
        kept.append(float(sum(shares) / mechanism.geometry.heads))
    return kept


def initial_rows(moment: Float[Tensor, "n n"], k: int, how: Start) -> Float[Tensor, "k n"]:
    """Initial E for a second moment.

    Raises:
        ValueError: ``how`` is ``random``, which is left to the mechanism.
    """
    n = len(moment)
    equal = means(equal_bounds(n, k))
    if how is Start.pooling:
        return equal
    if how is Start.stretches:
        return means(best_bounds(moment, k))
    if how is Start.spectrum:
        vectors = torch.linalg.eigh(moment.double()).eigenvectors[:, -k:]
        left, _, right = torch.linalg.svd(equal @ vectors)
        return (k / n) ** 0.5 * (left @ right) @ vectors.T
    raise ValueError("a random start is the mechanism's own")


def means(bounds: Sequence[int]) -> Float[Tensor, "k n"]:
    """Rows of averages over segments, each from one bound to the next."""
    rows = torch.zeros(len(bounds) - 1, bounds[-1], dtype=torch.float64)
    for at, (low, high) in enumerate(pairwise(bounds)):
        rows[at, low:high] = 1 / (high - low)
    return rows


def equal_bounds(n: int, k: int) -> list[int]:
    """Bounds of k segments of nearly equal length."""
    return [round(at * n / k) for at in range(k + 1)]


def best_bounds(moment: Float[Tensor, "n n"], k: int) -> list[int]:
    """Bounds of the k segments whose means preserve most of a second moment: Σ over segments of 1ᵀ M 1 / length.

    The maximum is exact, by dynamic programming in k steps over all pairs of bounds.
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


def _kept(rows: Float[Tensor, "k n"], moment: Float[Tensor, "n n"]) -> Tensor:
    """Preserved share tr(P M) / tr(M), with P the orthogonal projection on the rows' span."""
    basis = torch.linalg.svd(rows, full_matrices=False).Vh
    return ((basis @ moment) * basis).sum() / moment.trace()
