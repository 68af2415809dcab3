"""Treatment and format of metrics in tables: shares in per cent, others unchanged."""

from __future__ import annotations

from attn_zoo.records.bounds import BOUNDS

COUNTED = tuple(metric for metric, bounds in BOUNDS.items() if bounds == (0.0, 1.0))
"""Metrics between 0 and 1 that come from counts of examples."""
SHARES = (*COUNTED, "r2")
"""Metrics of at most 1 that are shown in per cent and differ by points; ``r2`` has no lower bound."""
_SIGNIFICANT = ("mse",)
"""Metrics in a unit of the task, which are written with significant digits."""


def style(metric: str) -> tuple[str, float]:
    """Format of a score, and the factor applied before formatting."""
    if metric in SHARES:
        return ".1f", 100.0
    return (".3g" if is_significant(metric) else ".2f"), 1.0


def written(value: float, metric: str) -> str:
    """Format a score with its unit: ``97.5 %``, ``8.12``, ``0.00213``."""
    form, scale = style(metric)
    return f"{scale * value:{form}}{' %' if metric in SHARES else ''}"


def is_significant(metric: str) -> bool:
    """Tell whether scores are written with significant digits, not decimals."""
    return metric in _SIGNIFICANT


def grain(metric: str, examples: int | None) -> float:
    """Smallest step between scores on so many examples; 0 for metrics that are not counts."""
    return 1 / examples if metric in COUNTED and examples else 0.0
