"""Candidate layers for given requirements: they have the capabilities, can be built, and are counted; no controls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from attn_zoo.contract import UnknownNameError, plain_options
from attn_zoo.cost.counted import activation_bytes
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.recommend.evidence import Figure
from attn_zoo.recommend.need import Need
from attn_zoo.registry import attention_options, attentions, build_attention, card, stated_options
from attn_zoo.rows import RowName


@dataclass(frozen=True, slots=True)
class Candidate:
    """Candidate layer: a mechanism with all its options and one implementation."""

    attention: str
    options: Mapping[str, Any]
    implementation: str
    backend: str | None = None

    @property
    def key(self) -> str:
        """Key of the layer; equal layers have equal keys."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def label(self) -> str:
        """Row of the layer, with options that are not the defaults, and the back end."""
        defaults = stated_options(card(self.attention), {})
        changed = {name: value for name, value in self.options.items() if defaults.get(name) != value}
        implementation = "auto" if self.implementation == "eager" else self.implementation
        return str(RowName(self.attention, changed, implementation)) + (f" ({self.backend})" if self.backend else "")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Attention that does not meet the requirements."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of the mechanism, without projections, for the whole batch."""

    flops: int
    """FLOPs of the forward pass."""
    training_flops: int | None
    """FLOPs of forward and backward pass; None if the card does not state the latter."""
    kept_bytes: int | None
    """Bytes that autograd saves for the backward pass, counted if ``need`` limits memory; None if shapes do not determine them."""


def candidate(attention: str, options: Mapping[str, Any], implementation: str, backend: str | None = None) -> Candidate:
    """Candidate with all options filled in, except those whose default follows the length.

    Raises:
        UnknownNameError: no such attention or option.
        ValueError: an option is out of its range.
    """
    return Candidate(attention, stated_options(card(attention), options), implementation, backend)


def measured_candidates(figures: Iterable[Figure]) -> tuple[dict[str, list[Figure]], dict[str, Candidate], list[str]]:
    """Figures by key of their layer, layers by key, and notes on figures of attentions that are not registered."""
    grouped: dict[str, list[Figure]] = {}
    layers: dict[str, Candidate] = {}
    notes: list[str] = []
    for figure in figures:
        try:
            layer = candidate(figure.attention, figure.options, figure.implementation, figure.backend)
        except (UnknownNameError, ValueError, TypeError) as error:
            notes.append(f"{figure.file}: {figure.attention} is left out: {error}")
            continue
        layers[layer.key] = layer
        grouped.setdefault(layer.key, []).append(figure)
    return grouped, layers, list(dict.fromkeys(notes))


def is_among(layer: Candidate, rows: Iterable[RowName]) -> bool:
    """Return whether one of the rows names the layer."""
    return any(row.names(layer.attention, layer.options, layer.implementation) for row in rows)


def unmeasured_candidates(need: Need, measured: Iterable[Candidate], rows: Sequence[RowName] = ()) -> list[Candidate]:
    """One layer for each unmeasured row, with its defaults at this length.

    Args:
        rows: rows to build layers for; all attentions but controls unless given.
    """
    layers = list(measured)
    asked = rows or [RowName(name) for name in attentions() if not card(name).control]
    missing = [row for row in asked if not any(is_among(layer, [row]) for layer in layers)]
    found = []
    for row in missing:
        options = plain_options(attention_options(card(row.attention), need.geometry, row.options))
        implementation = _fastest(need, row.attention) if row.implementation == "auto" else row.implementation
        found.append(candidate(row.attention, options, implementation))
    return found


def _fastest(need: Need, name: str) -> str:
    """Implementation that ``auto`` chooses on the device; ``eager`` if the mechanism cannot be built."""
    try:
        with torch.device("meta"):
            return build_attention(name, need.geometry, implementation="auto", device=need.device).implementation
    except (ValueError, UnknownNameError):
        return "eager"


def refusal(need: Need, layer: Candidate) -> str | None:
    """Reason why a layer does not meet the requirements, or None."""
    can, title = card(layer.attention).can, layer.attention
    if need.causal and not can.causal:
        return f"{title} has no causal form"
    if need.padding and not can.key_padding:
        return f"{title} cannot leave padded keys out"
    if need.cross and not can.cross:
        return f"{title} attends to its own tokens only"
    try:
        with torch.device("meta"):  # no memory, no computation
            build(need, layer)
    except (ValueError, UnknownNameError) as error:
        return str(error)
    return None


def warnings(need: Need, layer: Candidate) -> tuple[str, ...]:
    """Warnings of the mechanism about these options at this length."""
    entry = card(layer.attention)
    return entry.build.warnings(need.geometry, attention_options(entry, need.geometry, layer.options))


def counted(need: Need, layer: Candidate) -> Counted:
    """Counts from the formulas of the card; saved bytes counted by PyTorch."""
    entry = card(layer.attention)
    options = attention_options(entry, need.geometry, layer.options)
    cost = entry.cost(need.geometry, options)
    limited = need.memory is not None and need.direction == "training"
    kept = activation_bytes(entry, need.geometry, options, layer.implementation) if limited else None
    training = None if cost.backward_flops is None else need.batch * (cost.flops + cost.backward_flops)
    return Counted(need.batch * cost.flops, training, None if kept is None else need.batch * kept)


def build(need: Need, layer: Candidate) -> MultiHeadAttention:
    """Build the layer with its projections, on the current default device.

    Raises:
        UnknownNameError: no such attention, option or implementation.
        ValueError: an option is out of its range, or the mechanism refuses the geometry.
    """
    return MultiHeadAttention(
        need.width,
        need.heads,
        layer.attention,
        length=need.length,
        context_length=need.length if need.cross else None,
        causal=need.causal,
        implementation=layer.implementation,
        **layer.options,
    )
