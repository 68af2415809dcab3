"""Initialisation of the matrices E and F of a student, which project keys and values along the length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.analysis.capture import attention_inputs
from attn_zoo.analysis.starts import Start, initial_rows
from attn_zoo.attention.low_rank._projections import LowRankAttention, MatrixMap, Sharing
from attn_zoo.contract import Attention
from attn_zoo.transplant.encoder import BATCH
from attn_zoo.transplant.texts import Passages


@torch.no_grad()
def second_moments(model: Any, passages: Passages) -> list[Float[Tensor, "heads n n"]]:
    """Return the second moments of the keys for each layer and head, in float64. Entry (i, j) is the mean of kᵢ·kⱼ, the inner
    product of the keys at positions i and j, over the passages in which both positions hold real tokens."""
    sums: list[Tensor] = []
    count = torch.zeros(passages.ids.shape[1], passages.ids.shape[1], dtype=torch.float64)
    for batch in passages.batches(BATCH):
        real = batch.valid.double()
        count += real.T @ real
        keys = [(layer.key * batch.valid[:, None, :, None]).double() for layer in attention_inputs(model, batch.call())]
        moments = [torch.einsum("bhid,bhjd->hij", key, key) for key in keys]
        sums = [before + moment for before, moment in zip(sums, moments, strict=True)] if sums else moments
    return [moment / count.clamp(min=1) for moment in sums]


def takes_start(mechanism: Attention) -> TypeGuard[LowRankAttention]:
    """Return True if the mechanism has matrices E and F, which project keys and values along the length and can be initialised."""
    return isinstance(mechanism, LowRankAttention) and all(isinstance(map_, MatrixMap) for map_ in mechanism.maps)


@torch.no_grad()
def start(stack: Sequence[Attention], moments: Sequence[Float[Tensor, "heads n n"]], how: Start) -> list[float]:
    """Initialise the matrices E and F of every layer, which project keys and values along the length. Both get the same values,
    because the weight of projected value s is computed from projected key s. The kind ``random`` changes nothing.

    Args:
        stack: mechanisms of one model, in order. Those without such matrices are left as they are. A matrix that layers share is
            computed from the sum of their moments.
        moments: second moments of the keys in the same layers.
        how: kind of initialisation.

    Returns:
        For each layer with such matrices, the share of the keys' second moment that E preserves, averaged over heads.
    """
    layers = [(mechanism, moment) for mechanism, moment in zip(stack, moments, strict=True) if takes_start(mechanism)]
    kept = []
    for at, (mechanism, moment) in enumerate(layers):
        shared = mechanism.options.sharing is Sharing.layerwise
        whole = torch.stack([each for _, each in layers]).sum(dim=0) if shared else moment
        shares = []
        for map_ in mechanism.maps:
            assert isinstance(map_, MatrixMap)
            owner = not shared or at == 0
            for copy in range(map_.weight.shape[1]):
                own = [map_.heads[copy]] if map_.weight.shape[1] > 1 else list(map_.heads)
                if owner and how is not Start.random:
                    rows = initial_rows(whole[own].sum(dim=0), map_.results, how)
                    map_.weight[:, copy] = rows.to(map_.weight) / map_.scale
                shares.append(_kept(map_.matrix[0, copy].double(), moment[own].sum(dim=0)) * len(own))
        kept.append(float(sum(shares) / mechanism.geometry.heads))
    return kept


def _kept(rows: Float[Tensor, "k n"], moment: Float[Tensor, "n n"]) -> Tensor:
    """Return the preserved share tr(P M) / tr(M), where M is ``moment`` and P is the orthogonal projection onto the span of
    ``rows``."""
    basis = torch.linalg.svd(rows, full_matrices=False).Vh
    return ((basis @ moment) * basis).sum() / moment.trace()
