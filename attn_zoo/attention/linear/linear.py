"""Linear attention: yᵢ = φ(qᵢ)ᵀ (Σⱼ φ(kⱼ) vⱼᵀ) / (φ(qᵢ)ᵀ Σⱼ φ(kⱼ)), with φ(x) = elu(x) + 1; causally over j ≤ i."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from jaxtyping import Float
from torch import Tensor

from attn_zoo.attention._kept import FLOAT
from attn_zoo.attention.linear._memory import MemoryState, RecurrentAttention
from attn_zoo.contract import Capabilities, Cost, Geometry
from attn_zoo.kernels.cpu.linear import all_bytes, all_flops, average_of_all, average_of_past, past_bytes, past_flops
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

    def of(self, x: Float[Tensor, "b h r d"], start: int) -> Float[Tensor, "b h r d"]:
        """φ(x) as a new tensor."""
        if self is FeatureMap.softmax:
            return x.softmax(dim=-1)
        positive = x.clamp(min=0)
        if self is FeatureMap.elu:
            return x.clamp(max=0).exp_().add_(positive)  # not elu + 1, which would round small features away
        return (positive.square_() if self is FeatureMap.squared_relu else positive).add_(RELU_FLOOR)

    def gradient(self, x: Tensor, features: Tensor, gradient: Tensor, start: int) -> Float[Tensor, "b h r d"]:
        """From φ(x) and the gradient of it that of x."""
        if self is FeatureMap.softmax:
            return features.mul_(gradient - (gradient * features).sum(dim=-1, keepdim=True))
        if self is FeatureMap.elu:
            return features.clamp_(max=1).mul_(gradient)
        slope = x.clamp(min=0)
        return (slope.mul_(2) if self is FeatureMap.squared_relu else slope.sign_()).mul_(gradient)


@dataclass
class Options:
    """Options of linear attention."""

    feature_map: FeatureMap = FeatureMap.elu

    def __post_init__(self) -> None:
        if isinstance(self.feature_map, str):
            self.feature_map = FeatureMap(self.feature_map)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Sums over keys and values, read once for each query; causal adds comparisons within chunks. State: both sums."""
    d = geometry.head_dim
    forward, backward = (past_flops if geometry.causal else all_flops)(geometry, d)
    kept = (past_bytes if geometry.causal else all_bytes)(geometry, d)
    state = FLOAT * geometry.inner_dim * (d + 1) if geometry.causal else None
    return Cost(forward, 0, backward_flops=backward, activation_bytes={"eager": kept}, state_bytes=state)


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
    implementations=("eager", "tiled"),
    variants={name: {"feature_map": name} for name in ("relu", "squared_relu", "softmax")},
)
class Linear(RecurrentAttention):
    """Attention with the weights φ(q)·φ(k), whose sums over keys are made once for all queries.

    Paper: Katharopoulos et al. 2020: Eq. 5 (all keys), Eq. 9 (the past), Eq. 7 for elu + 1, Eq. 18 to 20 for ``step``,
        Eq. 13 to 15 for the gradients.
    Symbols: S → MemoryState.summed, Z → MemoryState.mass, φ → feature_map.
    Differs: causally, chunks of positions compare directly and only their sums are carried on; gradients
        likewise. Feature maps besides elu + 1 are not the paper's. Everything is computed in float32 at
        least, also under autocast. Padded keys have no features at all; a query whose weights all
        vanish yields zeros.
    """

    has_mass = True

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """As many features as keys."""
        d, n = geometry.head_dim, geometry.keys
        return (f"{d} features are no fewer than the {n} keys: sums over keys are no smaller than keys",) if d >= n else ()

    def read_all(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """The averages over all keys."""
        return average_of_all(self.options.feature_map, query, key, value, key_valid)

    def read(
        self, state: MemoryState, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> tuple[Float[Tensor, "batch heads n head_dim"], MemoryState]:
        """The averages over the past, and both sums after it."""
        return average_of_past(self.options.feature_map, state, query, key, value, key_valid)
