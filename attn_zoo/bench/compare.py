"""Statistics of rounds, and the comparison of the times of two subjects, A and B: which one is faster, or whether they tie.

Each round times both in random order (``TimingProtocol.ordered``) and gives one quotient of their seconds. A
disturbance of the whole round cancels in the quotient. A disturbance of one subject is as likely to hit A as B, because the order
is random.

If B costs q times as much as A, the quotient of a round is above q with probability 1/2, independently of all other rounds. The
number of rounds above q is therefore binomial, which gives the confidence interval of the sign test for the median quotient. It
needs no assumption about the noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

UNSTABLE = 0.2
"""A timing is unstable if its interquartile range is more than this share of its median."""

SMALLEST = 0.02
"""Smallest difference of interest between two times, as a share. The place of data in memory alone can change a time by 1 %."""

CONFIDENCE = 0.95
"""Probability that the interval contains the true quotient."""

FEWEST_ROUNDS = 2 + math.floor(-math.log2(1 - CONFIDENCE))
"""Smallest number of rounds that gives an interval: the smallest n with 2 · (1/2)ⁿ < 1 - ``CONFIDENCE``."""

ROUNDS = 150
"""Number of rounds that can detect a difference of 10 %, if timings vary by 10 % and half of the rounds are disturbed."""


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile. All three are equal if there is one value.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("quartiles must get at least one value; got none")
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def quotients(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Return numerator / denominator for each round of timings. A disturbance that slows down a whole round cancels in the
    quotient. If one list is longer, its last rounds are left out."""
    return [a / b for a, b in zip(numerators, denominators, strict=False)]


def unstable(spread: tuple[float, float, float]) -> bool:
    """Return True if the interquartile range is more than ``UNSTABLE`` times the median. ``spread`` is the lower quartile, the
    median and the upper quartile."""
    low, middle, high = spread
    return high - low > UNSTABLE * middle


def fit_exponent(lengths: Sequence[float], values: Sequence[float]) -> float:
    """Return the exponent p of the power law value ~ length^p, fitted by least squares to the logarithms of lengths and values.
    Linear growth has p = 1, and quadratic growth p = 2."""
    x, y = [math.log(n) for n in lengths], [math.log(v) for v in values]
    return statistics.linear_regression(x, y).slope


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of the times of A and B. ``quotient`` is the median over rounds of (seconds of B) / (seconds of A), so A is
    faster if the quotient is above 1. ``low`` and ``high`` are the bounds of its confidence interval."""

    rounds: int
    quotient: float
    low: float
    high: float
    """Upper bound of the interval. The true quotient lies in the interval with probability ``CONFIDENCE`` or more."""
    smallest: float = SMALLEST

    @property
    def verdict(self) -> str:
        """``A faster`` if the whole confidence interval of the quotient lies above 1 + s, ``B faster`` if it lies below
        1 / (1 + s), otherwise ``tie``. Here s is ``smallest``, the smallest difference of interest."""
        if self.low > 1 + self.smallest:
            return "A faster"
        return "B faster" if self.high < 1 / (1 + self.smallest) else "tie"


def compare(first: Sequence[float], second: Sequence[float], *, smallest: float = SMALLEST) -> Comparison:
    """Return the comparison of A, whose seconds are ``first``, with B, whose seconds are ``second``. Both lists have one value per
    round. If one list is longer, its last rounds are left out.

    Args:
        smallest: smallest difference of interest as a share, such as 0.05. With the value 0, A and B differ if the interval
            excludes 1.

    Raises:
        ValueError: there are fewer than ``FEWEST_ROUNDS`` rounds, a time is not positive and finite, or ``smallest`` is negative.
    """
    if smallest < 0:
        raise ValueError(
            f"smallest must be at least 0, because it is the smallest difference of interest, as a share; got {smallest}"
        )
    if not all(0 < seconds < math.inf for seconds in [*first, *second]):
        raise ValueError("seconds must be positive and finite. Leave out steps that could not be timed")
    taken = quotients(second, first)
    if len(taken) < FEWEST_ROUNDS:
        raise ValueError(
            f"A and B must have at least {FEWEST_ROUNDS} rounds in common for an interval; got {len(taken)}. Time more rounds"
        )
    from scipy import stats  # late: tables of counted costs need this module, but not scipy

    interval = stats.quantile_test(taken, p=0.5).confidence_interval(CONFIDENCE)
    return Comparison(len(taken), statistics.median(taken), float(interval.low), float(interval.high), smallest)
