"""Differences between the experimental settings of published and recorded results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_zoo.published.figures import Figure, Protocol

_COMPARED = {
    "direction": "direction",
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
"""Compared fields of ``Protocol`` and ``Facts``, in the order of the differences, with their printed names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(Protocol):
    """Experimental settings of a recorded row: the fields of ``Protocol`` and a few more. Fields that are None are not compared."""

    metric: str
    seeds: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """All options of the mechanism, defaults included."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Setting in which a published experiment differs from ours."""

    setting: str
    there: str | None
    """Published value; None if the source does not state it."""
    here: str


def protocol_difference(figure: Figure, facts: Facts) -> tuple[Difference, ...]:
    """Return the settings in which a published score differs from ours, and after them those that the source does not state."""
    known: list[tuple[str, Any, Any]] = [("metric", figure.metric, facts.metric)]
    known += [(title, getattr(figure.protocol, name), getattr(facts, name)) for name, title in _COMPARED.items()]
    known += [(option, there, facts.options.get(option)) for option, there in figure.options.items()]
    known.append(("seeds", figure.source.seeds, facts.seeds))
    if set(facts.options) - {"dropout"} and not figure.options:
        known.append(("options of the attention", None, "known"))
    found = [
        Difference(setting, None if there is None else _formatted(there), _formatted(here))
        for setting, there, here in known
        if here is not None and there != here
    ]
    return tuple(sorted(found, key=lambda difference: difference.there is None))


def phrases(differences: Sequence[Difference]) -> tuple[str, ...]:
    """Return differences as phrases, such as ``length 2,000 there, 256 here``. The last phrase lists the settings that the source
    does not state."""
    told = [f"{each.setting} {each.there} there, {each.here} here" for each in differences if each.there is not None]
    unknown = [each.setting for each in differences if each.there is None]
    return (*told, *([f"not given there: {', '.join(unknown)}"] if unknown else []))


def _formatted(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
