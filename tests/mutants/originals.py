"""Originals: small sound attentions that mutants are derived from, one for each kind of claim on a card. None is registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_zoo import card as card_of
from attn_zoo.attention.dense.softmax import Softmax
from attn_zoo.contract import (
    Attention,
    AttentionCard,
    Capabilities,
    CompressingAttention,
    Cost,
    Geometry,
    Growth,
    by_length,
    softmax_over_valid,
)

ORIGINALS: dict[str, AttentionCard] = {}


def original(name: str, *, time: str, memory: str, **facts: Any) -> Callable[[type[Attention]], type[Attention]]:
    """Give a class a card without registering it."""

    def decorate(cls: type[Attention]) -> type[Attention]:
        facts["time"], facts["memory"] = Growth(time), Growth(memory)
        cls.card = ORIGINALS[name] = AttentionCard(name, title=name, paper="none", equation="see the class", build=cls, **facts)
        return cls

    return decorate


class PlainSoftmax(Softmax):
    """The zoo's softmax attention with one more implementation to break."""

    def attend_sdpa(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return self.attend(query, key, value, key_valid)


PlainSoftmax.card = ORIGINALS["softmax"] = replace(card_of("softmax"), build=PlainSoftmax, implementations=("eager", "sdpa"))


ORIGINALS["uniform"] = card_of("uniform")


@dataclass
class NoOptions:
    """Options of an attention that has none."""


def linear_cost(geometry: Geometry, options: NoOptions) -> Cost:
    width = geometry.head_dim
    products = (1 if geometry.causal else 2) * geometry.heads * width * (width + 1)
    state = 4 * geometry.inner_dim * (width + 1) if geometry.causal else None
    return Cost(flops=2 * geometry.queries * products, parameters=0, state_bytes=state)


@dataclass(frozen=True)
class Sums:
    """State of linear attention: the sum φ(K)ᵀ [V 1] over the tokens read."""

    summed: Tensor
    position: int = 0

    @property
    def nbytes(self) -> int:
        return self.summed.nbytes


@original(
    "linear",
    options=NoOptions,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, stepwise=True),
    time="n d^2",
    memory="n d^2",
    cost=linear_cost,
)
class Linear(Attention):
    """φ(Q) (φ(K)ᵀ V) over φ(Q) (φ(K)ᵀ 1), with φ = elu + 1; running sums when causal."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        query, key = F.elu(query) + 1, F.elu(key) + 1
        ones = torch.ones_like(value[..., :1])
        if key_valid is not None:
            key = key.masked_fill(~key_valid[:, None, :, None], 0)
        counted = torch.cat([value, ones], dim=-1)
        if self.geometry.causal:
            return self.read(query, self.running(key, counted))
        return self.divided(query @ (key.mT @ counted))

    def initial_state(self, batch: int, *, dtype: torch.dtype = torch.float32, device: Any = None) -> Sums:
        d = self.geometry.head_dim
        return Sums(torch.zeros(batch, self.geometry.heads, d, d + 1, dtype=dtype, device=device))

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Sums]:
        self.check_state(state, value)
        counted = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
        sums = state.summed.unsqueeze(2) + self.running(F.elu(key) + 1, counted)
        return self.read(F.elu(query) + 1, sums), Sums(sums[:, :, -1], state.position + value.shape[2])

    def check_state(self, state: Any, value: Tensor) -> None:
        if len(state.summed) != len(value):
            raise ValueError(f"the state is of {len(state.summed)} examples, got {len(value)}")

    def read(self, query: Tensor, sums: Tensor) -> Tensor:
        return self.divided((query.unsqueeze(-2) @ sums).squeeze(-2))

    def divided(self, out: Tensor) -> Tensor:
        weight = out[..., -1:]
        return out[..., :-1] / weight.masked_fill(weight == 0, 1)

    def running(self, key: Tensor, counted: Tensor) -> Tensor:
        return (key.unsqueeze(-1) * counted.unsqueeze(-2)).cumsum(dim=2)


@dataclass
class ProjectedOptions:
    projected_length: int = by_length("n/12", lambda g: max(1, g.keys // 12))


def projected_cost(geometry: Geometry, options: ProjectedOptions) -> Cost:
    products = 2 * options.projected_length * (geometry.keys + geometry.queries) * geometry.inner_dim
    return Cost(flops=2 * products, parameters=2 * options.projected_length * geometry.keys)


def identity(cls: type[Projected]) -> Callable[[Geometry], Attention]:
    """Return a builder of ``cls`` with identity maps, which is softmax attention."""

    def build(geometry: Geometry) -> Attention:
        built = cls(geometry, ProjectedOptions(projected_length=geometry.keys))
        nn.init.eye_(built.key_map)
        nn.init.eye_(built.value_map)
        return built

    return build


class Projected(CompressingAttention):
    """softmax(Q (E K)ᵀ / √d) F V."""

    def __init__(self, geometry: Geometry, options: ProjectedOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.key_map = nn.Parameter(torch.randn(options.projected_length, geometry.keys) / geometry.keys**0.5)
        self.value_map = nn.Parameter(torch.randn(options.projected_length, geometry.keys) / geometry.keys**0.5)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        keys = key.shape[2]
        return self.attend_compressed(query, self.key_map[:, :keys] @ key, self.value_map[:, :keys] @ value)

    def resize_length(self, length: int) -> None:
        kept = min(length, self.geometry.keys)
        for name in ("key_map", "value_map"):
            old = getattr(self, name).detach()
            setattr(self, name, nn.Parameter(F.pad(old[:, :kept], (0, length - kept))))
        self.geometry = self.geometry_at(length)

    def compressed_length(self) -> int | None:
        return self.key_map.shape[0]

    def compression_flops(self, length: int, width: int, inputs: int) -> int:
        return 4 * self.key_map.shape[0] * length * width

    def compress(self, tokens: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.key_map @ tokens, self.value_map @ tokens

    def attend_compressed(self, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None = None) -> Tensor:
        return (query @ key.mT / query.shape[-1] ** 0.5).softmax(dim=-1) @ value


original(
    "projected",
    options=ProjectedOptions,
    can=Capabilities(causal=False, key_padding=True, cross=True, any_length=False, shorter=True),
    time="n k d",
    memory="n k",
    cost=projected_cost,
    softmax_limit=identity(Projected),
    variants={"narrow": {"projected_length": 3}},
)(Projected)


def quadratic_cost(geometry: Geometry, options: NoOptions) -> Cost:
    hashing = 2 * geometry.keys * geometry.inner_dim
    return Cost(flops=4 * geometry.queries * geometry.keys * geometry.inner_dim + hashing, parameters=0)


@original(
    "hashed",
    options=NoOptions,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True, random_at_build=True, shares_query_key=True),
    time="n^2 d",
    memory="n^2",
    cost=quadratic_cost,
    reads=("query", "value"),
)
class Hashed(Attention):
    """Softmax attention of X to itself within two buckets, the sides of a random plane."""

    plane: Tensor

    def __init__(self, geometry: Geometry, options: NoOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.keep_plane(torch.randn(geometry.head_dim, 1))

    def keep_plane(self, plane: Tensor) -> None:
        self.register_buffer("plane", plane)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        bucket = self.buckets((query @ self.plane).squeeze(-1), key_valid)
        allowed = bucket.unsqueeze(-1) == bucket.unsqueeze(-2)
        if key_valid is not None:
            allowed = allowed & key_valid[:, None, None, :]
        if self.geometry.causal:
            allowed = allowed & torch.ones(allowed.shape[-2:], dtype=torch.bool, device=allowed.device).tril()
        return softmax_over_valid(query @ query.mT / query.shape[-1] ** 0.5, allowed) @ value

    def buckets(self, height: Tensor, key_valid: Tensor | None) -> Tensor:
        return height > 0


ORIGINALS["longformer"] = replace(card_of("longformer"), implementations=("eager",), variants={})
