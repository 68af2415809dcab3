"""How what was published was made, against how what is recorded was: short sentences, one for each fact that differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_zoo.published.figures import Figure

_ASKED = {
    "data": "data",
    "length": "length",
    "depth": "depth",
    "dim": "width",
    "heads": "heads",
    "ffn": "feed-forward width",
    "steps": "steps",
    "batch_size": "batch",
    "optimiser": "optimiser",
    "learning_rate": "learning rate",
    "schedule": "schedule",
    "warmup_steps": "warm-up steps",
    "weight_decay": "weight decay",
    "dropout": "dropout",
    "chosen_on": "weights chosen on",
}
"""Facts of ``Protocol`` and ``Facts``, in the order they are told, and how they are called."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a row of ours was made with, in the terms of ``Protocol``; None is not compared."""

    metric: str
    seeds: int
    data: str | None = None
    length: int | None = None
    depth: int | None = None
    dim: int | None = None
    heads: int | None = None
    ffn: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    optimiser: str | None = None
    learning_rate: float | None = None
    schedule: str | None = None
    warmup_steps: int | None = None
    weight_decay: float | None = None
    dropout: float | None = None
    chosen_on: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Every option of the attention."""


def protocol_difference(figure: Figure, facts: Facts) -> tuple[str, ...]:
    """What differs between the setting of a published figure and ours, such as ``length 2,000 there, 256 here``.

    The last sentence names what the source does not give; the flaws it has are in ``figure.protocol``
    and ``figure.source``.
    """
    told = [f"{figure.metric} there, {facts.metric} here"] if figure.metric != facts.metric else []
    unknown = []
    for name, called in _ASKED.items():
        there, here = getattr(figure.protocol, name), getattr(facts, name)
        if here is None:
            continue
        if there is None:
            unknown.append(called)
        elif there != here:
            told.append(f"{called} {_said(there)} there, {_said(here)} here")
    for option, there in figure.options.items():
        if option in facts.options and facts.options[option] != there:
            told.append(f"{option} {_said(there)} there, {_said(facts.options[option])} here")
    if figure.source.seeds is None:
        unknown.append("seeds")
    elif figure.source.seeds != facts.seeds:
        told.append(f"seeds {figure.source.seeds} there, {facts.seeds} here")
    if set(facts.options) - {"dropout"} and not figure.options:
        told.append("the attention's options are not given there")
    return (*told, *([f"not given there: {', '.join(unknown)}"] if unknown else []))


def _said(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
