"""cosFormer: weights relu(qᵢ)·relu(kⱼ) cos(π/2 · (i − j)/M), divided by their sum; cos of a difference splits into two products."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.attention._kept import FLOAT
from attn_zoo.attention.linear._memory import MemoryState, RecurrentAttention
from attn_zoo.contract import Capabilities, Cost, Geometry, UnsupportedError
from attn_zoo.kernels.cpu.linear import all_bytes, all_flops, average_of_all, average_of_past, past_bytes, past_flops
from attn_zoo.registry import register_attention

RELU_FLOOR = 1e-3
"""Added to every feature, so that no query is without a key; the paper's code puts a floor under the denominator instead."""


@dataclass
class Options:
    """cosFormer has no options."""


@dataclass(frozen=True, slots=True)
class Turned:
    """relu(x) cos(π/2 · i/M) and relu(x) sin(π/2 · i/M) beside each other, for position i."""

    reach: int
    """M: what lies so far apart has no weight."""

    def of(self, x: Float[Tensor, "b h r d"], start: int) -> Float[Tensor, "b h r m"]:
        """2 d features of each row."""
        positive = x.clamp(min=0).add_(RELU_FLOOR)
        cos, sin = self._turn(x, start)
        return torch.cat([positive * cos, positive * sin], dim=-1)

    def gradient(self, x: Tensor, features: Tensor, gradient: Tensor, start: int) -> Float[Tensor, "b h r d"]:
        """From the gradient of the features that of x."""
        (cos, sin), (grad_cos, grad_sin) = self._turn(x, start), gradient.chunk(2, dim=-1)
        return (grad_cos * cos).addcmul_(grad_sin, sin).masked_fill_(x <= 0, 0)

    def _turn(self, x: Tensor, start: int) -> tuple[Float[Tensor, "r 1"], Float[Tensor, "r 1"]]:
        positions = torch.arange(start, start + x.shape[2], dtype=x.dtype, device=x.device)
        angles = positions[:, None] * (math.pi / 2 / self.reach)
        return angles.cos(), angles.sin()


def cost(geometry: Geometry, options: Options) -> Cost:
    """Linear attention with 2 d features a head."""
    m = 2 * geometry.head_dim
    forward, backward = (past_flops if geometry.causal else all_flops)(geometry, m)
    kept = (past_bytes if geometry.causal else all_bytes)(geometry, m)
    state = FLOAT * geometry.heads * m * (geometry.head_dim + 1) if geometry.causal else None
    return Cost(forward, 0, backward_flops=backward, activation_bytes={"eager": kept}, state_bytes=state)


@register_attention(
    "cosformer",
    title="cosFormer",
    paper="Qin et al. 2022, arXiv:2202.08791",
    equation="Section 3, cos-based re-weighting",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=False, shorter=True, stepwise=True),
    time="n d^2",
    memory="n d",
    cost=cost,
    implementations=("eager", "tiled"),
)
class CosFormer(RecurrentAttention):
    """Linear attention with ReLU features whose weights fall with the distance like a cosine.

    Paper: Qin et al. 2022, Section 3 (ReLU features, cos-based re-weighting).
    Symbols: M → reach, Q' and K' → relu(q) and relu(k), Q^cos and Q^sin → the two halves of Turned.
    Differs: M is the length the mechanism is built for, where the published code takes that of each input: so
        padding and later tokens change no weight, and longer inputs are refused until
        ``resize_length``. Positions count from 0, of queries and keys alike. Each feature is 0.001
        larger (see RELU_FLOOR). Causally, chunks of positions compare directly and only sums are
        carried on. Padded keys have no features at all.
    """

    has_mass = True

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """As many features as keys."""
        m, n = 2 * geometry.head_dim, geometry.keys
        return (f"{m} features are no fewer than the {n} keys: sums over keys are no smaller than keys",) if m >= n else ()

    def features(self) -> int:
        """Each number of a head twice."""
        return 2 * self.geometry.head_dim

    @property
    def map(self) -> Turned:
        """The features of positions below M."""
        return Turned(max(self.geometry.queries, self.geometry.keys))

    def check_lengths(self, batch: int, queries: int, keys: int, key_valid: Tensor | None) -> None:
        """Queries beyond M would turn weights negative."""
        super().check_lengths(batch, queries, keys, key_valid)
        if queries > self.map.reach:
            raise UnsupportedError(
                f"cosformer was built for {self.map.reach} positions, beyond which weights turn negative; got {queries} queries; "
                "build it for the longest input, or call resize_length"
            )

    def resize_length(self, length: int) -> None:
        """Go over to another M."""
        self.geometry = self.geometry_at(length)

    def read_all(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """The averages over all keys."""
        return average_of_all(self.map, query, key, value, key_valid)

    def read(
        self, state: MemoryState, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> tuple[Float[Tensor, "batch heads n head_dim"], MemoryState]:
        """The averages over the past, and both sums after it."""
        return average_of_past(self.map, state, query, key, value, key_valid)
