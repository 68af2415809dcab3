"""Bounds of scores and counts in a record, by metric and by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_SHARE = (0.0, 1.0)
BOUNDS: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("accuracy", "f1", "f1_micro", "f1_macro"), _SHARE),
    "perplexity": (1.0, math.inf),
    "r2": (-math.inf, 1.0),
    "mse": (0.0, math.inf),
}
"""Least and greatest possible score of each metric."""
_AT_LEAST_ONE = ("parameters", "flops_per_example", "training_flops_per_example", "pretraining_flops_per_example")
"""Counts of the whole network, which has an output layer and is therefore never free."""


def bounds(metric: str) -> tuple[float, float]:
    """Return the least and the greatest possible score of a metric; infinite for an unknown metric."""
    return BOUNDS.get(metric, (-math.inf, math.inf))


def beyond_bounds(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each score of a record's plain data beyond the bounds of its metric, each impossible count and time."""
    metric = data["task_card"]["metric"]
    least, most = bounds(metric)
    for name, score in _scores(data):
        if score is not None and not least <= score <= most:
            yield f"{name} must be from {least:g} to {most:g}, because the metric is {metric}; got {score:g}"
    counted = data["counted"]
    for name in _AT_LEAST_ONE:
        if counted.get(name, 1) < 1:
            yield f"counted.{name} must be at least 1; got {counted[name]}"
    for name, value in data["measured"].items():
        if not value and name != "step_seconds_iqr":
            yield f"measured.{name} must be above 0; got {value:g}"
    if counted.get("attention_parameters", 0) > counted.get("parameters", math.inf):
        yield f"attention cannot have {counted['attention_parameters']} of {counted['parameters']} parameters"


def _scores(data: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    yield from ((f"the score {name!r}", score) for name, score in data["scores"].items())
    yield "the chance level", data["chance"]
    yield from ((f"the validation score at step {point['step']}", point.get("valid")) for point in data["curve"])
    yield "the best validation score of the study", (data["tuning"] or {}).get("best_valid")
