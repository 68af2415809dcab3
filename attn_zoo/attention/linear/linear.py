"""Linear attention: yᵢ = φ(qᵢ)ᵀ (Σⱼ φ(kⱼ) vⱼᵀ) / (φ(qᵢ)ᵀ Σⱼ φ(kⱼ)), by default with φ(x) = elu(x) + 1. If causal, the sums run over
j ≤ i.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.attention.linear._recurrence import Answer, Read, RecurrentAttention
from attn_zoo.contract import FLOAT, Capabilities, Cost, Geometry, MemoryState
from attn_zoo.contract.masks import allowed_pairs, weighted_mean
from attn_zoo.kernels import fla
from attn_zoo.kernels.cpu import linear as cpu
from attn_zoo.kernels.cpu._chunks import filled, into_chunks
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries

RELU_FLOOR = 1e-3
"""Constant added to features that may be zero, so that the weights of a query are never all zero, as in Performer."""


class FeatureMap(Enum):
    """Feature map φ of queries and keys. ``softmax`` is applied to all channels of a head together, the other maps to
    each element.
    """

    elu = "elu"
    """elu(x) + 1, as in the paper; always positive."""
    relu = "relu"
    """max(x, 0) + 0.001."""
    squared_relu = "squared_relu"
    """max(x, 0)² + 0.001. The weights are sharper than with ``relu``."""
    softmax = "softmax"
    """exp(x) / Σ exp(x) over the channels of a head. For queries, this sum cancels when outputs are divided by the sum
    of weights.
    """

    def __call__(self, x: Float[Tensor, "*front d"]) -> Float[Tensor, "*front d"]:
        """Return φ(x)."""
        if self is FeatureMap.softmax:
            return x.softmax(dim=-1)
        if self is FeatureMap.elu:
            return x.clamp(max=0).exp() + x.relu()  # elu(x) + 1 would round small features to zero
        return (x.relu().square() if self is FeatureMap.squared_relu else x.relu()) + RELU_FLOOR


@dataclass
class Options:
    """Options of linear attention."""

    feature_map: FeatureMap = FeatureMap.elu

    def __post_init__(self) -> None:
        self.feature_map = FeatureMap(self.feature_map)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of φ(K)ᵀ V, and of φ(Q) times this product. If causal, the weights φ(Q) φ(K)ᵀ within chunks and their
    products with V are counted, too.

    The backward pass has two products for each product of the forward pass. If causal, it also computes the weights and sums again.
    The state holds the sum of φ(k) and the sum of φ(k) vᵀ.
    """
    d, inner = geometry.head_dim, geometry.inner_dim
    if not geometry.causal:
        flops = 2 * (geometry.queries + geometry.keys) * d * inner
        return Cost(flops, 0, backward_flops=2 * flops)
    chunk, n = filled(geometry.keys)
    flops, backward = 4 * n * inner * (chunk + d), 10 * n * inner * (chunk + d)
    return Cost(flops, 0, backward_flops=backward, state_bytes=FLOAT * inner * (d + 1))


@register_attention(
    "linear",
    title="Linear attention",
    paper="Katharopoulos et al. 2020, arXiv:2006.16236",
    equation="Eq. 5, 7 and 9; 18 to 20 step by step",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=True, stepwise=True),
    time="n d^2",
    memory="n d",
    cost=cost,
    implementations=("eager", "tiled", "fla"),
    variants={name: {"feature_map": name} for name in ("relu", "squared_relu", "softmax")},
)
class Linear(RecurrentAttention):
    """Attention with the weights φ(q)·φ(k), divided by their sum. The sums over keys are computed once for all queries.

    Paper: Katharopoulos et al. 2020: Eq. 4 (``definition``), Eq. 5 (all keys), Eq. 9 (past keys only), Eq. 7 (elu + 1), Eq. 18 to
        20 (``step``), Eq. 13 to 15 (gradients in ``tiled``).
    Symbols: S and Z → MemoryState.summed, whose last column is Z; φ → feature_map.
    Differs: if causal, weights are computed within chunks only, and earlier chunks are read from sums. The paper's feature map is
        elu + 1; the other feature maps are additions. Everything is computed in float32 or more, also under autocast, except the
        matrix products in the implementation ``fla``. Features of padded keys are zero. A query whose weights are all zero gets
        zeros.
    """

    @staticmethod
    def features(geometry: Geometry, options: Any) -> int:
        """Return the number of features of a head."""
        return geometry.head_dim

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Return a warning if a head has at least as many features as there are keys."""
        m, n = cls.features(geometry, options), geometry.keys
        if m < n:
            return ()
        return (f"there are {m} features, at least as many as keys ({n}), so the sums take at least as much memory as the keys",)

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        """Return why the implementation cannot run, or None if it can. ``fla`` has a kernel for causal attention only."""
        return fla.without_causality(cls.card.name) if implementation == "fla" and not geometry.causal else None

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs from the n × n weights φ(qᵢ)·φ(kⱼ), divided by their sum over the keys."""
        weights = self.phi(query) @ self.phi(key).mT
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        weights = weights if allowed is None else weights * allowed
        return weighted_mean(weights @ value, weights.sum(dim=-1, keepdim=True))

    def read_all(self, read: Read, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **streams: Keys) -> Queries:
        """Return the bidirectional outputs. The sums [S z] = φ(K)ᵀ [V 1] are computed once for all queries."""
        if self.implementation == "tiled":
            return cpu.average_of_all(self._tiled(), query, key, value, key_valid)
        sums = self.phi(key, key_valid).mT @ F.pad(value, (0, 1), value=1.0)
        return weighted_mean(self.phi(query) @ sums)

    def read(self, state: MemoryState, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Answer:
        """Return the causal outputs, and the new state. Tokens are read chunk by chunk, starting from the sums in ``state``."""
        n, (chunk, _) = value.shape[2], filled(value.shape[2])
        phi_query, phi_key = self.phi(query, start=state.position), self.phi(key, key_valid, state.position)
        queries, keys, values = (into_chunks(x, chunk) for x in (phi_query, phi_key, F.pad(value, (0, 1), value=1.0)))
        sums = torch.cat([state.summed[:, :, None], keys.mT @ values], dim=2).cumsum(dim=2)  # before each chunk, and after all
        out = (queries @ keys.mT).tril() @ values + queries @ sums[:, :, :-1]
        # A copy, because a view would keep the sums of all chunks.
        return weighted_mean(out.flatten(2, 3)[:, :, :n]), state.after(sums[:, :, -1].clone(), n)

    def read_tiled(self, state: MemoryState, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Answer:
        """Return the outputs and the state of ``read``, computed in blocks that fit the caches of a CPU."""
        sums = state.summed[..., :-1], state.summed[..., -1]
        out, summed, mass = cpu.average_of_past(self._tiled(), *sums, query, key, value, key_valid)
        return out, state.after(torch.cat([summed, mass[..., None]], dim=-1), query.shape[2])

    def read_fla(self, state: MemoryState, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Answer:
        """Return the causal outputs, and ``state`` unchanged. flash-linear-attention's kernel computes the weighted sums of values
        and the sums of weights, starting from zeros. This method divides these sums, because the kernel would add a constant to the
        divisor.
        """
        counted = F.pad(value, (0, 1), value=1.0)
        out = fla.answers("linear_attn", self.phi(query), self.phi(key, key_valid), counted, scale=1.0, normalize=False)
        return weighted_mean(out), state

    def _tiled(self) -> cpu.Features:
        return cpu.features_of(self.options.feature_map.value, RELU_FLOOR)

    def state_shape(self) -> tuple[int, int]:
        """Return the numbers of rows and columns of the state: one row per feature, one column per channel of a value, and one
        column for z, the sum of features.
        """
        return self.features(self.geometry, self.options), self.geometry.head_dim + 1

    def phi(self, x: Keys, valid: KeyValid = None, start: int = 0) -> Float[Tensor, "batch heads keys m"]:
        """Return the features φ(x) of queries or keys. Features of padded tokens are zero."""
        phi: Tensor = self.options.feature_map(x)
        return phi if valid is None else phi * valid[:, None, :, None]
