"""Laws fitted to figures over lengths."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def fit_exponent(lengths: Sequence[float], values: Sequence[float]) -> float:
    """Slope of log value over log length, by least squares: 1 is linear, 2 quadratic."""
    x, y = [math.log(n) for n in lengths], [math.log(v) for v in values]
    return statistics.linear_regression(x, y).slope
