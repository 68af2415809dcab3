"""Means with their uncertainty."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over ``count`` seeds and the half width of its interval, None where one seed says nothing of the spread."""

    mean: float
    half_width: float | None
    count: int


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and Student's t interval of ``CONFIDENCE``; None where there is no value."""
    if not values:
        return None
    count = len(values)
    if count == 1:
        return Estimate(values[0], None, 1)
    quantile = float(t.ppf((1 + CONFIDENCE) / 2, count - 1))
    return Estimate(statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(count), count)
