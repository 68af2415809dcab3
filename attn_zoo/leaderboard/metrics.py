"""Metrics as tables treat and write them: shares in per cent, and others as they are."""

from __future__ import annotations

import math

COUNTED = ("accuracy", "f1", "f1_micro", "f1_macro")
"""Metrics between 0 and 1 that come from counts of examples."""
SHARES = (*COUNTED, "r2")
"""Metrics of at most 1 that are shown in per cent and differ by points; ``r2`` has no lower bound."""
_SIGNIFICANT = ("mse",)
"""Metrics in a unit of the task's own, which are written with significant digits."""


def style(metric: str) -> tuple[str, float]:
    """Format of a score, and the factor before it is written."""
    if metric in SHARES:
        return ".1f", 100.0
    return (".3g" if is_significant(metric) else ".2f"), 1.0


def written(value: float, metric: str) -> str:
    """A score with its unit: ``97.5 %``, ``8.12``, ``0.00213``."""
    form, scale = style(metric)
    return f"{scale * value:{form}}{' %' if metric in SHARES else ''}"


def is_significant(metric: str) -> bool:
    """Whether scores are written with significant digits, not decimals."""
    return metric in _SIGNIFICANT


def bounds(metric: str) -> tuple[float, float]:
    """Least and greatest score."""
    return 0.0 if metric in (*COUNTED, *_SIGNIFICANT) else -math.inf, 1.0 if metric in SHARES else math.inf


def grain(metric: str, examples: int | None) -> float:
    """The step in which scores of so many examples can differ; 0 for metrics that are no counts."""
    return 1 / examples if metric in COUNTED and examples else 0.0
