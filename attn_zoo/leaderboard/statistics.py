"""Statistics over seeds: means with confidence intervals, and p values of differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

from attn_zoo.leaderboard.student import t_quantile, t_tail

CONFIDENCE = 0.95
EVERYWHERE = (-math.inf, math.inf)
"""Bounds of a quantity that has none."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean over ``count`` seeds and half width of its interval, None with one seed, which says nothing about the spread."""

    mean: float
    half_width: float | None
    count: int
    ends: tuple[float, float] | None = None
    """Ends of the interval if it is not symmetric, because it ends at a bound of the metric or is of another kind; else None."""

    @property
    def low(self) -> float:
        """Lower end of the interval; the mean where it is not known."""
        return self.ends[0] if self.ends else self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """Upper end of the interval; the mean where it is not known."""
        return self.ends[1] if self.ends else self.mean + (self.half_width or 0.0)

    def minus(self, constant: float) -> Estimate:
        """Subtract a constant that is known exactly."""
        ends = self.ends and (self.ends[0] - constant, self.ends[1] - constant)
        return Estimate(self.mean - constant, self.half_width, self.count, ends)

    def times(self, factor: float) -> Estimate:
        """Multiply by a constant that is known exactly."""
        half = None if self.half_width is None else abs(factor) * self.half_width
        low, high = sorted((factor * self.low, factor * self.high))
        return Estimate(factor * self.mean, half, self.count, (low, high) if self.ends else None)

    def written(self, form: str, scale: float = 1.0, sign: str = "") -> str:
        """Format as ``mean ± half width`` or, with other ends, ``mean (low to high)``; the mean alone without an interval."""
        mean, low, high = (f"{scale * value:{sign}{form}}" for value in (self.mean, self.low, self.high))
        if self.ends and not low == mean == high:
            return f"{mean} ({low} to {high})"
        return mean if self.half_width is None else f"{mean} ± {scale * self.half_width:{form}}"

    def in_points(self, share: bool, sign: str = "+") -> str:
        """Format a difference of scores: shares in points of a hundred, others with three digits."""
        return f"{self.written('.1f', 100, sign)} points" if share else self.written(".3g", sign=sign)


def estimate(values: Sequence[float], bounds: tuple[float, float] = EVERYWHERE) -> Estimate | None:
    """Return the mean and Student's t interval of ``CONFIDENCE``; None without values.

    Args:
        bounds: least and greatest possible value, at which the interval ends.

    Raises:
        TypeError: a value is not a number.
    """
    if not values:
        return None
    if odd := [value for value in values if not isinstance(value, Real)]:
        raise TypeError(f"estimate takes numbers, one for each seed; got {odd[0]!r}")
    count = len(values)
    mean = statistics.fmean(values)
    if count == 1:
        return Estimate(mean, None, 1)
    return _within(mean, t_quantile(count - 1, _UPPER) * deviation(values) / math.sqrt(count), count, bounds)


_UPPER = (1 + CONFIDENCE) / 2
"""Level of the quantile at the upper end of an interval."""


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of two or more values, with n - 1 degrees of freedom."""
    mean = statistics.fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _within(mean: float, half: float, count: int, bounds: tuple[float, float]) -> Estimate:
    """Return an estimate whose interval ends at the bounds."""
    low, high = max(mean - half, min(bounds[0], mean)), min(mean + half, max(bounds[1], mean))
    return Estimate(mean, half, count, None if (low, high) == (mean - half, mean + half) else (low, high))


def paired(these: Mapping[int, float], those: Mapping[int, float]) -> Estimate | None:
    """Mean of ``these`` minus ``those`` at common seeds, where the effect of a seed on both cancels; None without a common seed."""
    return estimate([these[seed] - those[seed] for seed in sorted(these.keys() & those.keys())])


def welch(
    these: Sequence[float],
    those: Sequence[float],
    floors: tuple[float, float] = (0.0, 0.0),
    bounds: tuple[float, float] = EVERYWHERE,
) -> tuple[Estimate, float]:
    """Return the difference of two means with its interval, and the two-sided p value of Welch's t test (1947).

    Args:
        these: values of two or more seeds; with one, there is no interval and the p value is 1.
        those: values that are subtracted, of the same or other seeds.
        floors: least standard deviation of each: a smaller one is taken as an accident of few seeds.
        bounds: least and greatest possible difference, at which the interval ends.
    """
    difference, count = statistics.fmean(these) - statistics.fmean(those), min(len(these), len(those))
    if count < 2:
        return Estimate(difference, None, count), 1.0
    parts = [max(deviation(v), floor) ** 2 / len(v) for v, floor in zip((these, those), floors, strict=True)]
    variance = sum(parts)
    if variance == 0:
        return Estimate(difference, 0.0, count), float(difference == 0)
    freedom = 1 / sum((part / variance) ** 2 / (len(v) - 1) for part, v in zip(parts, (these, those), strict=True))
    error = math.sqrt(variance)
    return _within(difference, t_quantile(freedom, _UPPER) * error, count, bounds), t_tail(freedom, difference / error)


def paired_p_value(differences: Sequence[float], grain: float = 0.0) -> float:
    """Return the two-sided p value of a paired t test.

    Args:
        differences: differences of two scores at two or more seeds.
        grain: smallest step between scores, such as 1 / examples. Agreement between seeds that is closer than rounding to this
            step allows is a coincidence of rounding, so the variance of rounding, a sixth of the step's square, is added.
    """
    mean = statistics.fmean(differences)
    error = math.sqrt((deviation(differences) ** 2 + grain**2 / 6) / len(differences))
    return 1.0 if mean == 0 else t_tail(len(differences) - 1, mean / error if error else math.inf)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for their number (Holm 1979): if values of at most 0.05 are called different, at most 5 % of families
    contain any error, however the values depend on each other."""
    corrected, most = [0.0] * len(p_values), 0.0
    for passed, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        most = max(most, min(1.0, (len(p_values) - passed) * p_values[at]))
        corrected[at] = most
    return corrected
