"""Which layers can be had for a need: capabilities held, built without a refusal, counted. Controls are none."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from attn_zoo.contract import UnknownNameError, plain_options
from attn_zoo.cost.counted import activation_bytes
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.recommend.evidence import Figure
from attn_zoo.recommend.need import Need
from attn_zoo.registry import attention_options, attentions, build_attention, card, stated_options


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layer: a mechanism with all its options and one implementation."""

    attention: str
    options: Mapping[str, Any]
    implementation: str
    backend: str | None = None

    @property
    def key(self) -> str:
        """Equal for equal layers."""
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def label(self) -> str:
        """Name in tables: the attention, its implementation unless auto or eager, and options that are not the defaults."""
        defaults = stated_options(card(self.attention), {})
        changed = [f"{name}={value}" for name, value in self.options.items() if defaults.get(name) != value]
        kernel = ", ".join(word for word in (self.implementation, self.backend) if word and word not in ("auto", "eager"))
        return " ".join([self.attention, *([f"({kernel})"] if kernel else []), *changed])


@dataclass(frozen=True, slots=True)
class Refusal:
    """An attention that does not hold what is needed."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts of the mechanism alone, without projections, of the whole batch."""

    flops: int
    """Of the forward pass."""
    training_flops: int | None
    """Of forward and backward pass; None where the card does not state the latter."""
    kept_bytes: int | None
    """Bytes that autograd keeps between forward and backward pass, counted where ``need`` limits memory; None where shapes do not
    tell."""


def candidate(attention: str, options: Mapping[str, Any], implementation: str, backend: str | None = None) -> Candidate:
    """Candidate with all options filled in but those whose default follows the length.

    Raises:
        UnknownNameError: no such attention or option.
        ValueError: an option breaks its rule.
    """
    return Candidate(attention, stated_options(card(attention), options), implementation, backend)


def measured_candidates(figures: Iterable[Figure]) -> tuple[dict[str, list[Figure]], dict[str, Candidate], list[str]]:
    """The layers that figures are of: their figures and themselves by key, and notes on those that are not registered here."""
    grouped: dict[str, list[Figure]] = {}
    found: dict[str, Candidate] = {}
    notes: list[str] = []
    for figure in figures:
        try:
            made = candidate(figure.attention, figure.options, figure.implementation, figure.backend)
        except (UnknownNameError, ValueError, TypeError) as error:
            notes.append(f"{figure.file}: {figure.attention} is left out: {error}")
            continue
        found[made.key] = made
        grouped.setdefault(made.key, []).append(figure)
    return grouped, found, list(dict.fromkeys(notes))


def unmeasured_candidates(need: Need, measured: Iterable[Candidate]) -> list[Candidate]:
    """One layer of each contender that has none measured, with its defaults at this length."""
    there = {layer.attention for layer in measured}
    missing = [name for name in attentions() if not card(name).control and name not in there]
    defaults = {name: plain_options(attention_options(card(name), need.geometry, {})) for name in missing}
    return [candidate(name, options, _fastest(need, name)) for name, options in defaults.items()]


def _fastest(need: Need, name: str) -> str:
    """The implementation that ``auto`` takes on the device; ``eager`` where the mechanism is refused anyway."""
    try:
        with torch.device("meta"):
            return build_attention(name, need.geometry, implementation="auto", device=need.device).implementation
    except (ValueError, UnknownNameError):
        return "eager"


def refusal(need: Need, layer: Candidate) -> str | None:
    """Why a layer does not hold what is needed, or None."""
    can, title = card(layer.attention).can, layer.attention
    if need.causal and not can.causal:
        return f"{title} has no causal form"
    if need.padding and not can.key_padding:
        return f"{title} cannot leave padded keys out"
    if need.cross and not can.cross:
        return f"{title} attends to its own tokens only"
    try:
        with torch.device("meta"):  # where nothing is allocated or computed
            build(need, layer)
    except (ValueError, UnknownNameError) as error:
        return str(error)
    return None


def warnings(need: Need, layer: Candidate) -> tuple[str, ...]:
    """What the mechanism itself says against these options at this length."""
    entry = card(layer.attention)
    return entry.build.warnings(need.geometry, attention_options(entry, need.geometry, layer.options))


def counted(need: Need, layer: Candidate) -> Counted:
    """By the formulas on the card; activations by PyTorch."""
    entry = card(layer.attention)
    options = attention_options(entry, need.geometry, layer.options)
    cost = entry.cost(need.geometry, options)
    limited = need.memory is not None and need.direction == "training"
    kept = activation_bytes(entry, need.geometry, options, layer.implementation) if limited else None
    training = None if cost.backward_flops is None else need.batch * (cost.flops + cost.backward_flops)
    return Counted(need.batch * cost.flops, training, None if kept is None else need.batch * kept)


def build(need: Need, layer: Candidate) -> MultiHeadAttention:
    """The layer with its projections, on the current default device.

    Raises:
        UnknownNameError: no such attention, option or implementation.
        ValueError: an option breaks its rule, or the mechanism refuses the geometry.
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
