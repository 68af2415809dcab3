"""Sound attentions in the style of third-party code, originals of the ``stranger`` mutants; most have no definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_zoo.contract import Attention, Capabilities, Cost, Geometry, allowed_pairs, softmax_over_valid
from mutants.originals import NoOptions, original

CHUNK = 16
"""Positions in a chunk of the recurrences."""


@dataclass
class DropoutOptions:
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is a share from 0 to below 1; got {self.dropout}")


def sunk_cost(geometry: Geometry, options: DropoutOptions) -> Cost:
    return Cost(4 * geometry.queries * geometry.keys * geometry.inner_dim, parameters=2 * geometry.heads)


@original(
    "sunk",
    options=DropoutOptions,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=True),
    time="n^2 d",
    memory="n^2",
    cost=sunk_cost,
    variants={"dropout": {"dropout": 0.1}},
)
class Sunk(Attention):
    """Softmax attention with a learned temperature and sink for each head; a sink takes weight and gives no value."""

    def __init__(self, geometry: Geometry, options: DropoutOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.sink, self.log_temperature = (nn.Parameter(torch.zeros(geometry.heads, 1, 1)) for _ in range(2))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return self.dropped(self.weights(query, key, key_valid)) @ value

    def weights(self, query: Tensor, key: Tensor, key_valid: Tensor | None) -> Tensor:
        scores = query * query.shape[-1] ** -0.5 @ key.mT * self.log_temperature.exp().to(query.dtype)
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        scores = torch.cat([scores, self.sink.to(scores.dtype).expand(*scores.shape[:3], 1)], dim=-1)
        return softmax_over_valid(scores, None if allowed is None else F.pad(allowed, (0, 1), value=True))[..., :-1]

    def dropped(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, self.options.dropout, self.training)


class Defined(Sunk):
    """Sunk with its definition."""

    def definition(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        raised = (query @ key.mT / query.shape[-1] ** 0.5 * self.log_temperature.exp()).exp()
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        raised = raised if allowed is None else raised * allowed
        return raised @ value / (raised.sum(dim=-1, keepdim=True) + self.sink.exp())


@dataclass(frozen=True)
class Kept:
    """Cache of the rotated keys and the values of the tokens read."""

    key: Tensor
    value: Tensor

    @property
    def position(self) -> int:
        return self.key.shape[2]

    @property
    def nbytes(self) -> int:
        return self.key.nbytes + self.value.nbytes


def rotated_cost(geometry: Geometry, options: NoOptions) -> Cost:
    n, inner = geometry.keys, geometry.inner_dim
    return Cost(4 * n * n * inner, parameters=0, state_bytes=8 * n * inner if geometry.causal else None)


@original(
    "rotated",
    options=NoOptions,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n^2 d",
    memory="n^2",
    cost=rotated_cost,
)
class Rotated(Attention):
    """Softmax attention of queries and keys that are rotated by their positions (RoPE)."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        query, key = self.rotate(query, 0), self.rotate(key, 0)
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        return softmax_over_valid(query @ key.mT * query.shape[-1] ** -0.5, allowed) @ value

    def rotate(self, x: Tensor, start: int) -> Tensor:
        half = x.shape[-1] // 2
        cosine, sine = (t.to(x.dtype) for t in self.table(x, start, half))
        first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine, rest], dim=-1)

    def table(self, x: Tensor, start: int, half: int) -> tuple[Tensor, Tensor]:
        place = torch.arange(start, start + x.shape[2], dtype=torch.float64, device=x.device)
        angle = place[:, None] * 10000 ** (-torch.arange(half, dtype=torch.float64, device=x.device) / max(half, 1))
        return angle.cos(), angle.sin()

    def initial_state(self, batch: int, *, dtype: torch.dtype = torch.float32, device: Any = None) -> Kept:
        empty = torch.zeros(batch, self.geometry.heads, 0, self.geometry.head_dim, dtype=dtype, device=device)
        return Kept(empty, empty)

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Kept]:
        if state.key.shape[0] != len(value):
            raise ValueError(f"the state is of {state.key.shape[0]} examples, got {len(value)}")
        before, new = state.position, value.shape[2]
        keys = torch.cat([state.key, self.rotate(key, before)], dim=2)
        values = torch.cat([state.value, value], dim=2)
        past = torch.ones(new, before + new, dtype=torch.bool, device=value.device).tril(before)
        scores = self.rotate(query, before) @ keys.mT * query.shape[-1] ** -0.5
        return softmax_over_valid(scores, past) @ values, Kept(keys, values)
