"""Differential attention: Y = (1 − c) norm((softmax(Q₁ K₁ᵀ / √d) − λ softmax(Q₂ K₂ᵀ / √d)) V), with two queries and two keys per
head, a learned λ, and a constant c for each layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, Geometry, NoOptions, allowed_pairs, softmax_over_valid
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries

RMS_FLOOR = 1e-5
"""Number added to the mean square of an output before its root is taken, as in the authors' code."""
SPREAD = 0.1
"""Standard deviation of the initial values of the vectors that λ is computed from, as in the authors' code."""


def cost(geometry: Geometry, options: NoOptions) -> Cost:
    """Return the cost of the scores Q₁ K₁ᵀ and Q₂ K₂ᵀ, and of the difference of their softmaxes times V. The two matrices of scores
    together take as many FLOPs as one matrix Q Kᵀ, because each uses half of the channels. The state holds keys and values.
    """
    n, m, inner = geometry.queries, geometry.keys, geometry.inner_dim
    flops = 4 * n * m * inner
    state = FLOAT * m * geometry.cached_width() if geometry.causal else None
    return Cost(flops, 4 * (geometry.head_dim // 2), backward_flops=2 * flops, state_bytes=state)


@register_attention(
    "differential",
    title="Differential attention",
    paper="Ye et al. 2024, arXiv:2410.05258",
    equation="Section 2.1, the difference of two softmax maps, and the norm of each head",
    options=NoOptions,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=True),
    time="n^2 d",
    memory="n^2",
    cost=cost,
)
class Differential(Attention[NoOptions]):
    """Difference of two softmax attentions to the same values. Weights that both softmaxes give to a key cancel.

    Paper: Ye et al. 2024, Section 2.1: λ = exp(λ_q1·λ_k1) − exp(λ_q2·λ_k2) + λ_init. In layer l, counted from 0, λ_init = 0.8 − 0.6
        exp(−0.3 l). The output of each head is divided by its root mean square.
    Symbols: λ_q1, λ_k1, λ_q2, λ_k2 → the four parts of the parameter ``vectors``; λ_init → initial.
    Differs: Q₁ and K₁ are the first half of the channels of a head, and Q₂ and K₂ are the second half. If head_dim is odd, the
        first half is one channel wider. In the paper, a layer has half as many heads as a layer of softmax attention, and a head is
        twice as wide. The RMSNorm of the outputs has no learned scale, because the output projection can learn it. A query that
        sees no valid key gets zeros. Until ``join_layers`` is called on a model, every layer has the λ_init of layer 0.
        In a hybrid, l counts the layers with differential attention only.
    """

    initial = 0.2  # of layer 0

    def __init__(self, geometry: Geometry, options: NoOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.vectors = nn.Parameter(SPREAD * torch.randn(4 * (geometry.head_dim // 2)))  # flat: optimisers decay matrices only

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        """Return why the mechanism cannot run, or None if it can. Each head must have at least two channels, because its channels
        are split into two halves.
        """
        if geometry.head_dim < 2:
            return (
                "differential must have a head_dim of at least 2, because it halves the channels of a head; got 1. Use fewer heads"
            )
        return None

    def join(self, layer: int, stack: Sequence[Attention]) -> None:
        """Set λ_init, the constant part of λ, for the layer at index ``layer`` (from 0)."""
        self.initial = 0.8 - 0.6 * math.exp(-0.3 * layer)

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs: apply each of the two softmax attentions to the values, and subtract the results."""
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        reads = []
        for q, k in zip(query.tensor_split(2, dim=-1), key.tensor_split(2, dim=-1), strict=True):
            reads.append(softmax_over_valid(q @ k.mT / q.shape[-1] ** 0.5, allowed) @ value)
        q_1, k_1, q_2, k_2 = self.vectors.view(4, -1)
        weight = (q_1 * k_1).sum().exp() - (q_2 * k_2).sum().exp() + self.initial
        difference = reads[0] - weight * reads[1]
        return (1 - self.initial) * difference / (difference.square().mean(dim=-1, keepdim=True) + RMS_FLOOR).sqrt()

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs: subtract the two matrices of weights, and apply the difference to the values."""
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        first, second = (
            softmax_over_valid(q @ (k * k.shape[-1] ** -0.5).mT, allowed)
            for q, k in zip(query.tensor_split(2, dim=-1), key.tensor_split(2, dim=-1), strict=True)
        )
        out = (first - self.weight().to(first.dtype) * second) @ value
        wide = out.to(torch.promote_types(out.dtype, torch.float32))
        return ((1 - self.initial) * F.rms_norm(wide, wide.shape[-1:], eps=RMS_FLOOR)).to(out.dtype)

    def weight(self) -> Float[Tensor, ""]:
        """Return λ, the factor of the second softmax attention."""
        query, key = self.vectors.view(2, 2, -1).unbind(dim=1)
        plus, minus = (query * key).sum(dim=-1).exp()
        return plus - minus + self.initial
