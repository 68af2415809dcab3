"""Linear attention: yᵢ = φ(qᵢ)ᵀ (Σⱼ φ(kⱼ) vⱼᵀ) / (φ(qᵢ)ᵀ Σⱼ φ(kⱼ)), with φ(x) = elu(x) + 1; causally over j ≤ i."""

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
"""Constant added to features that may be zero, so that weights cannot all vanish; as in Performer."""


class FeatureMap(Enum):
    """Feature map φ, applied to queries and keys elementwise, or over the channels of a head."""

    elu = "elu"
    """elu(x) + 1, the paper's; positive everywhere."""
    relu = "relu"
    """max(x, 0) + 0.001."""
    squared_relu = "squared_relu"
    """max(x, 0)² + 0.001: sharper."""
    softmax = "softmax"
    """exp(x) / Σ exp(x) over the head: exponential features; for queries, the final division cancels the sum."""

    def __call__(self, x: Float[Tensor, "*front d"]) -> Float[Tensor, "*front d"]:
        """Compute φ(x)."""
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
    """Return the FLOPs of φ(K)ᵀ V and of φ(Q) times it; causal adds φ(Q) φ(K)ᵀ within chunks and its product with V.

    The state holds both sums. The backward pass takes four products of this size; causal computes weights and sums again.
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
    """Attention with the weights φ(q)·φ(k). Sums over keys are computed once for all queries.

    Paper: Katharopoulos et al. 2020: Eq. 5 (all keys), Eq. 9 (the past), Eq. 7 for elu + 1, Eq. 18 to 20 for ``step``,
        Eq. 13 to 15 for the gradients of tiles.
    Symbols: S and, as its last column, Z → MemoryState.summed; φ → feature_map.
    Differs: causally, weights within chunks are computed directly, and only sums are carried from chunk to chunk. Feature maps
        other than elu + 1 are not the paper's. Everything except the products of ``fla`` is computed in float32 at least, also
        under autocast. Features of padded keys are zero; a query whose weights all vanish yields zeros.
    """

    @staticmethod
    def features(geometry: Geometry, options: Any) -> int:
        """Return the number of features of a head."""
        return geometry.head_dim

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Return a warning if there are at least as many features as keys."""
        m, n = cls.features(geometry, options), geometry.keys
        return (f"{m} features are no fewer than the {n} keys: sums over keys are no smaller than keys",) if m >= n else ()

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        """Return the reason if ``fla`` is used without causality, for which flash-linear-attention has no kernel."""
        return fla.without_causality(cls.card.name) if implementation == "fla" and not geometry.causal else None

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Compute the n × n weights φ(qᵢ)·φ(kⱼ) of Eq. 4."""
        weights = self.phi(query) @ self.phi(key).mT
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        weights = weights if allowed is None else weights * allowed
        return weighted_mean(weights @ value, weights.sum(dim=-1, keepdim=True))

    def read_all(self, read: Read, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **streams: Keys) -> Queries:
        """Compute Eq. 5 with [S z] = φ(K)ᵀ [V 1], once for all queries."""
        if self.implementation == "tiled":
            return cpu.average_of_all(self._tiled(), query, key, value, key_valid)
        sums = self.phi(key, key_valid).mT @ F.pad(value, (0, 1), value=1.0)
        return weighted_mean(self.phi(query) @ sums)

    def read(self, state: MemoryState, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Answer:
        """Compute Eq. 9 chunk by chunk, starting with [S z] of the state."""
        n, (chunk, _) = value.shape[2], filled(value.shape[2])
        phi_query, phi_key = self.phi(query, start=state.position), self.phi(key, key_valid, state.position)
        queries, keys, values = (into_chunks(x, chunk) for x in (phi_query, phi_key, F.pad(value, (0, 1), value=1.0)))
        sums = torch.cat([state.summed[:, :, None], keys.mT @ values], dim=2).cumsum(dim=2)  # before each chunk, and after all
        out = (queries @ keys.mT).tril() @ values + queries @ sums[:, :, :-1]
        return weighted_mean(out.flatten(2, 3)[:, :, :n]), state.after(sums[:, :, -1], n)

    def read_tiled(self, state: MemoryState, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Answer:
        """Compute ``read`` in tiles."""
        sums = state.summed[..., :-1], state.summed[..., -1]
        out, summed, mass = cpu.average_of_past(self._tiled(), *sums, query, key, value, key_valid)
        return out, state.after(torch.cat([summed, mass[..., None]], dim=-1), query.shape[2])

    def read_fla(self, state: MemoryState, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Answer:
        """Compute Eq. 9 with flash-linear-attention's kernel. Its division, which adds a constant, is done here."""
        counted = F.pad(value, (0, 1), value=1.0)
        out = fla.answers("linear_attn", self.phi(query), self.phi(key, key_valid), counted, scale=1.0, normalize=False)
        return weighted_mean(out), state

    def _tiled(self) -> cpu.Features:
        return cpu.features_of(self.options.feature_map.value, RELU_FLOOR)

    def state_shape(self) -> tuple[int, int]:
        """Return the numbers of rows and columns of S, with z as one more column."""
        return self.features(self.geometry, self.options), self.geometry.head_dim + 1

    def phi(self, x: Keys, valid: KeyValid = None, start: int = 0) -> Float[Tensor, "batch heads keys m"]:
        """Return the features φ(x). Padded tokens have zeros."""
        phi: Tensor = self.options.feature_map(x)
        return phi if valid is None else phi * valid[:, None, :, None]
