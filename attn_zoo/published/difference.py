"""Differences between the experimental settings of published and recorded results, each as one phrase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_zoo.published.figures import Figure, Protocol

_COMPARED = {
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
"""Compared fields of ``Protocol`` and ``Facts``, in the order of the phrases, with their printed names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(Protocol):
    """Experimental settings of a recorded row: the fields of ``Protocol`` and a few more. Fields that are None are not compared."""

    metric: str
    seeds: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """All options of the mechanism, defaults included."""


def protocol_difference(figure: Figure, facts: Facts) -> tuple[str, ...]:
    """Return phrases that say how the settings of a published score differ from ours, such as ``length 2,000 there, 256 here``.

    The last phrase lists the settings that the source does not state.
    """
    differences = [f"{figure.metric} there, {facts.metric} here"] if figure.metric != facts.metric else []
    unknown = []
    for name, printed_name in _COMPARED.items():
        there, here = getattr(figure.protocol, name), getattr(facts, name)
        if here is None:
            continue
        if there is None:
            unknown.append(printed_name)
        elif there != here:
            differences.append(f"{printed_name} {_formatted(there)} there, {_formatted(here)} here")
    for option, there in figure.options.items():
        if option in facts.options and facts.options[option] != there:
            differences.append(f"{option} {_formatted(there)} there, {_formatted(facts.options[option])} here")
    if figure.source.seeds is None:
        unknown.append("seeds")
    elif figure.source.seeds != facts.seeds:
        differences.append(f"seeds {figure.source.seeds} there, {facts.seeds} here")
    if set(facts.options) - {"dropout"} and not figure.options:
        differences.append("the attention's options are not given there")
    return (*differences, *([f"not given there: {', '.join(unknown)}"] if unknown else []))


def _formatted(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
