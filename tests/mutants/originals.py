"""Originals: sound attentions of the zoo, in ``eager`` and with few variants, that mutants are derived from. None is registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo import card as card_of
from attn_zoo.attention.dense.softmax import Options, Softmax
from attn_zoo.attention.linear import performer
from attn_zoo.attention.linear._sums_cost import eager_cost
from attn_zoo.attention.low_rank.linformer import Linformer
from attn_zoo.attention.low_rank.linformer import Options as LinformerOptions
from attn_zoo.contract import Attention, AttentionCard, Cost, Geometry
from attn_zoo.contract.length_maps import with_identity

VARIANTS: dict[str, Mapping[str, Mapping[str, Any]]] = {
    "agent": {"three": {"agents": 3}},
    "linformer": {"narrow": {"projected_length": 3}, "random": {"projection": "random"}},
    "linear": {"relu": {"feature_map": "relu"}},
    "local": {"neighbours": {"block": 4, "neighbours": 2}},
    "performer": card_of("performer").variants,
    "reformer": {"one_round": {"rounds": 1, "chunk": 4}},
    "retention": {"raw": {"normalise": False}},
    "gated_slot": {"raw": {"normalise": False}},
    "log_linear": {"raw": {"normalise": False}},
    "gated_delta_rule": {"negative": {"negative_eigenvalues": True}},
    **{name: {} for name in ("based", "cosformer", "gated_linear", "longformer", "rwkv7", "ssd", "transformer_xl")},
}
"""Variants of the originals that are attentions of the zoo with fewer variants than there."""

TILED = ("gated_linear", "longformer", "performer", "reformer", "transformer_xl")
"""Originals that keep their tiles, because their cards count the FLOPs of these."""

ORIGINALS: dict[str, AttentionCard] = {
    **{name: card_of(name) for name in ("uniform", "length_compression", "indexer", "moba", "differential")},
    **{
        name: replace(card_of(name), implementations=("eager", "tiled") if name in TILED else ("eager",), variants=variants)
        for name, variants in VARIANTS.items()
    },
}
# The card's formula counts the sums of ``tiled``, which lack a column that ``eager`` has.
ORIGINALS["linear"] = replace(ORIGINALS["linear"], cost=lambda geometry, options: eager_cost(geometry, geometry.head_dim))


class PlainSoftmax(Softmax):
    """The zoo's softmax attention with one more implementation to break."""

    def attend_sdpa(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return self.attend(query, key, value, key_valid)


@dataclass
class SunkOptions(Options):
    sinks: bool = True


def sunk_cost(geometry: Geometry, options: SunkOptions) -> Cost:
    cost = card_of("softmax").cost(geometry, options)
    return replace(cost, parameters=cost.parameters + geometry.heads)


class Sunk(Softmax):
    """The zoo's softmax attention with sinks, and with a learned temperature for each head."""

    def __init__(self, geometry: Geometry, options: SunkOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.log_temperature = nn.Parameter(torch.zeros(geometry.heads, 1, 1))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query * self.log_temperature.exp().to(query.dtype), key, value, key_valid)

    def definition(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().definition(query * self.log_temperature.exp(), key, value, key_valid)


@dataclass
class RedrawnOptions(performer.Options):
    redraw: int = 3


def derived(name: str, of: str, build: type[Attention], **facts: Any) -> None:
    """Enter a class that adds to an attention of the zoo."""
    build.card = ORIGINALS[name] = replace(card_of(of), name=name, build=build, **facts)


class Redrawn(performer.Performer):
    """The zoo's Performer, whose features are drawn anew at every third training call."""


derived("softmax", "softmax", PlainSoftmax, implementations=("eager", "sdpa"))
derived("redrawn", "performer", Redrawn, implementations=("eager", "tiled"), variants={}, options=RedrawnOptions)
derived(
    "sunk",
    "softmax",
    Sunk,
    implementations=("eager",),
    can=replace(card_of("softmax").can, exact=False),
    options=SunkOptions,
    cost=sunk_cost,
    variants={"dropout": {"dropout": 0.1}},
)


def identity(cls: type[Linformer]) -> Callable[[Geometry], Attention]:
    """Return a builder of ``cls`` with identity maps, which is softmax attention."""
    return lambda g: with_identity(cls(g, LinformerOptions(projected_length=g.keys, allow_full_rank=True)))
