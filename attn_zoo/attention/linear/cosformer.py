"""cosFormer: weights relu(qᵢ)·relu(kⱼ) cos(π/2 · (i − j)/M), divided by their sum; cos of a difference splits into two products."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.attention._masks import allowed_pairs
from attn_zoo.attention.linear._recurrence import MemoryState, RecurrentAttention, average_flops, average_of_past, weighted_mean
from attn_zoo.contract import FLOAT, Capabilities, Cost, Geometry, UnsupportedError
from attn_zoo.kernels.cpu import linear as cpu
from attn_zoo.registry import register_attention

RELU_FLOOR = 1e-3
"""Added to every feature, so that no query is without a key; the paper's code puts a floor under the denominator instead."""


@dataclass
class Options:
    """cosFormer has no options."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Linear attention with 2 d features a head."""
    m = 2 * geometry.head_dim
    forward, backward = average_flops(geometry, m)
    state = FLOAT * geometry.heads * m * (geometry.head_dim + 1) if geometry.causal else None
    return Cost(forward, 0, backward_flops=backward, state_bytes=state)


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
    Symbols: M → reach, Q' and K' → relu(q) and relu(k), Q^cos and Q^sin → the two halves of the features.
    Differs: M is the length the mechanism is built for, where the published code takes that of each input: so
        padding and later tokens change no weight, and longer inputs are refused until
        ``resize_length``. Positions count from 0, of queries and keys alike. Each feature is 0.001
        larger (see RELU_FLOOR). Causally, chunks of positions compare directly and only sums are
        carried on. Padded keys have no features at all.
    """

    has_mass = True

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Warn where features are no fewer than keys."""
        m, n = 2 * geometry.head_dim, geometry.keys
        return (f"{m} features are no fewer than the {n} keys: sums over keys are no smaller than keys",) if m >= n else ()

    def features(self) -> int:
        """Each number of a head twice."""
        return 2 * self.geometry.head_dim

    @property
    def reach(self) -> int:
        """M."""
        return max(self.geometry.queries, self.geometry.keys)

    def check_lengths(self, batch: int, queries: int, keys: int, key_valid: Tensor | None) -> None:
        """Queries beyond M would turn weights negative."""
        super().check_lengths(batch, queries, keys, key_valid)
        if queries > self.reach:
            raise UnsupportedError(
                f"cosformer was built for {self.reach} positions, beyond which weights turn negative; got {queries} queries; "
                "build it for the longest input, or call resize_length"
            )

    def resize_length(self, length: int) -> None:
        """Go over to another M."""
        self.geometry = self.geometry_at(length)

    def definition(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """n × n weights relu(qᵢ)·relu(kⱼ) cos(π/2 · (i − j)/M)."""
        rows, columns = (torch.arange(x.shape[2], dtype=x.dtype, device=x.device) for x in (query, key))
        near = (math.pi / 2 * (rows[:, None] - columns) / self.reach).cos()
        weights = (query.relu() + RELU_FLOOR) @ (key.relu() + RELU_FLOOR).mT * near
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        weights = weights if allowed is None else weights * allowed
        return weighted_mean(weights @ F.pad(value, (0, 1), value=1.0))

    def read_all(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Sums over all keys, made once for all queries."""
        return weighted_mean(self._phi(query) @ (self._phi(key, key_valid).mT @ F.pad(value, (0, 1), value=1.0)))

    def read(
        self, state: MemoryState, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> tuple[Float[Tensor, "batch heads n head_dim"], MemoryState]:
        """Sums over the past, from those of ``state`` on."""
        start = state.position
        return average_of_past(self._phi(query, start=start), self._phi(key, key_valid, start), value, state)

    def _phi(self, x: Tensor, valid: Tensor | None = None, start: int = 0) -> Float[Tensor, "batch heads n m"]:
        """[relu(x) cos θ, relu(x) sin θ] with θ = π/2 · i/M; no features where a token is padding."""
        theta = torch.arange(start, start + x.shape[2], dtype=x.dtype, device=x.device)[:, None] * (math.pi / 2 / self.reach)
        positive = x.relu() + RELU_FLOOR
        phi = torch.cat([positive * theta.cos(), positive * theta.sin()], dim=-1)
        return phi if valid is None else phi * valid[:, None, :, None]

    def read_all_tiled(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """``read_all`` in tiles."""
        return cpu.average_of_all(cpu.CosineWeighted(self.reach, RELU_FLOOR), query, key, value, key_valid)

    def read_tiled(
        self, state: MemoryState, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor
    ) -> tuple[Float[Tensor, "batch heads n head_dim"], MemoryState]:
        """``read`` in tiles."""
        assert state.mass is not None
        features = cpu.CosineWeighted(self.reach, RELU_FLOOR)
        out, summed, mass = cpu.average_of_past(features, state.position, state.summed, state.mass, query, key, value, key_valid)
        return out, MemoryState(summed, mass, state.position + query.shape[2])
