"""Linear attention: yᵢ = φ(qᵢ)ᵀ (Σⱼ φ(kⱼ) vⱼᵀ) / (φ(qᵢ)ᵀ Σⱼ φ(kⱼ)), with φ(x) = elu(x) + 1; causally over j ≤ i."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.attention._masks import allowed_pairs
from attn_zoo.attention.linear._recurrence import (
    MemoryState,
    RecurrentAttention,
    average_flops,
    average_of_past,
    average_of_past_fla,
    weighted_mean,
)
from attn_zoo.contract import FLOAT, Capabilities, Cost, Geometry
from attn_zoo.kernels.cpu import linear as cpu
from attn_zoo.registry import register_attention

RELU_FLOOR = 1e-3
"""Added to features that may be zero, so that no query is without a key; as in Performer."""


class FeatureMap(Enum):
    """φ, applied to each number of queries and keys, or to the numbers of a head together."""

    elu = "elu"
    """elu(x) + 1: the paper's; positive everywhere."""
    relu = "relu"
    """max(x, 0) + 0.001."""
    squared_relu = "squared_relu"
    """max(x, 0)² + 0.001: sharper."""
    softmax = "softmax"
    """exp(x) / Σ exp(x) over the head: exponential features, which for queries the division cancels to exp(x)."""

    def __call__(self, x: Float[Tensor, "*front d"]) -> Float[Tensor, "*front d"]:
        """φ(x)."""
        if self is FeatureMap.softmax:
            return x.softmax(dim=-1)
        if self is FeatureMap.elu:
            return x.clamp(max=0).exp() + x.relu()  # elu(x) + 1 would round small features away
        return (x.relu().square() if self is FeatureMap.squared_relu else x.relu()) + RELU_FLOOR

    @property
    def tiled(self) -> cpu.Features:
        """The same with its gradient, for tiles."""
        return cpu.SoftmaxOverHead() if self is FeatureMap.softmax else cpu.Elementwise(self.value, RELU_FLOOR)


@dataclass
class Options:
    """Options of linear attention."""

    feature_map: FeatureMap = FeatureMap.elu

    def __post_init__(self) -> None:
        if isinstance(self.feature_map, str):
            self.feature_map = FeatureMap(self.feature_map)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Sums over keys and values, read once for each query; causal adds comparisons within chunks. State: both sums."""
    forward, backward = average_flops(geometry, geometry.head_dim)
    state = FLOAT * geometry.inner_dim * (geometry.head_dim + 1) if geometry.causal else None
    return Cost(forward, 0, backward_flops=backward, state_bytes=state)


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
    """Attention with the weights φ(q)·φ(k), whose sums over keys are made once for all queries.

    Paper: Katharopoulos et al. 2020: Eq. 5 (all keys), Eq. 9 (the past), Eq. 7 for elu + 1, Eq. 18 to 20 for ``step``,
        Eq. 13 to 15 for the gradients of tiles.
    Symbols: S → MemoryState.summed, Z → MemoryState.mass, φ → feature_map.
    Differs: causally, chunks of positions compare directly and only their sums are carried on. Feature maps besides elu + 1 are
        not the paper's. Everything but the products of ``fla`` is computed in float32 at least, also under autocast. Padded keys
        have no features at all; a query whose weights all vanish yields zeros.
    """

    has_mass = True

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Warn where features are no fewer than keys."""
        d, n = geometry.head_dim, geometry.keys
        return (f"{d} features are no fewer than the {n} keys: sums over keys are no smaller than keys",) if d >= n else ()

    def definition(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Eq. 4 with its n × n weights φ(qᵢ)·φ(kⱼ)."""
        weights = self._phi(query) @ self._phi(key).mT
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        weights = weights if allowed is None else weights * allowed
        return weighted_mean(weights @ F.pad(value, (0, 1), value=1.0))

    def read_all(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Eq. 5: [S z] = φ(K)ᵀ [V 1], made once for all queries."""
        sums = self._phi(key, key_valid).mT @ F.pad(value, (0, 1), value=1.0)
        return weighted_mean(self._phi(query) @ sums)

    def read(
        self, state: MemoryState, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> tuple[Float[Tensor, "batch heads n head_dim"], MemoryState]:
        """Eq. 9, from the S and z of ``state`` on."""
        return average_of_past(self._phi(query), self._phi(key, key_valid), value, state)

    def answer_fla(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """Eq. 9 by flash-linear-attention."""
        return average_of_past_fla(self._phi(query), self._phi(key, key_valid), value)

    def _phi(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        """φ(x); no features where a token is padding."""
        phi: Tensor = self.options.feature_map(x)
        return phi if valid is None else phi * valid[:, None, :, None]

    def read_all_tiled(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """``read_all`` in tiles."""
        return cpu.average_of_all(self.options.feature_map.tiled, query, key, value, key_valid)

    def read_tiled(
        self, state: MemoryState, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> tuple[Float[Tensor, "batch heads n head_dim"], MemoryState]:
        """``read`` in tiles."""
        assert state.mass is not None
        features = self.options.feature_map.tiled
        out, summed, mass = cpu.average_of_past(features, state.summed, state.mass, query, key, value, key_valid)
        return out, MemoryState(summed, mass, state.position + query.shape[2])
