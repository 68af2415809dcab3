"""Statistics over seeds.

Means have Student's t intervals, and differences have the p values of Welch's or a paired t test. The metric and the test split
limit which differences count (see ``Resolution``). Runs until a criterion (protocol 3) have two more statistics:

- The share of seeds that met the criterion has the exact interval of Clopper and Pearson (1934).
- The number of steps to 90 % of the ceiling (the highest possible score) has the median of Kaplan and Meier (1958). A seed that did
  not reach 90 % is censored at its last step. The interval of the median is that of Brookmeyer and Crowley (1982) from log-log
  bands, as in R's ``survfit`` with ``conf.type="log-log"``.

Two conventions differ from R's. At a time at which the survival curve falls to 0, the lower band is 0 as well. If the curve is
exactly one half between two events, the median is the first of them; R takes their middle.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from statistics import NormalDist
from typing import Any

from scipy.special import betaincinv, stdtr, stdtrit

from attn_zoo.records import RunRecord
from attn_zoo.records.record import BOUNDS, bounds

CONFIDENCE = 0.95
EVERYWHERE = (-math.inf, math.inf)
"""Bounds of a quantity that can have any value."""
SHARES_OF_EXAMPLES = tuple(metric for metric, bounds in BOUNDS.items() if bounds == (0.0, 1.0))
"""Metrics between 0 and 1 that come from counts of examples."""
SHARES = (*SHARES_OF_EXAMPLES, "r2")
"""Percentage metrics: scores are at most 1 and shown in per cent; differences are shown in points. ``r2`` has no lower bound."""
SMALLEST = 0.01
"""Smallest difference that counts: one point for percentage metrics; for other metrics and for steps, 1 % of the larger value."""
_ROUNDING = 1e-6
"""Relative rounding error of scores, which are computed in single precision."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean over a number of seeds (``count``), with half the width of its interval. With one seed, the half width is None."""

    mean: float
    half_width: float | None
    count: int
    ends: tuple[float, float] | None = None
    """Ends of the interval if it is not symmetric around the mean, for example because a bound of the metric cuts it; else None."""

    @property
    def low(self) -> float:
        """Lower end of the interval, or the mean if there is no interval."""
        return self.ends[0] if self.ends else self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """Upper end of the interval, or the mean if there is no interval."""
        return self.ends[1] if self.ends else self.mean + (self.half_width or 0.0)

    def minus(self, constant: float) -> Estimate:
        """Return this estimate minus a constant that is known exactly."""
        ends = self.ends and (self.ends[0] - constant, self.ends[1] - constant)
        return Estimate(self.mean - constant, self.half_width, self.count, ends)

    def times(self, factor: float) -> Estimate:
        """Return this estimate times a constant that is known exactly."""
        half = None if self.half_width is None else abs(factor) * self.half_width
        low, high = sorted((factor * self.low, factor * self.high))
        return Estimate(factor * self.mean, half, self.count, (low, high) if self.ends else None)

    def written(self, form: str, scale: float = 1.0, sign: str = "") -> str:
        """Return this estimate as text: ``mean ± half width``, ``mean (low to high)`` if the interval is not symmetric, or the
        mean alone if there is no interval.

        Args:
            form: format of a number, such as ``.1f``.
            scale: factor by which each number is multiplied before it is formatted.
            sign: ``+`` to write the sign of a positive mean.
        """
        mean, low, high = (_signed(scale * value, sign, form) for value in (self.mean, self.low, self.high))
        if self.ends and not low == mean == high:
            return f"{mean} ({low} to {high})"
        return mean if self.half_width is None else f"{mean} ± {scale * self.half_width:{form}}"

    def in_points(self, share: bool, sign: str = "+") -> str:
        """Return this difference of scores as text.

        Args:
            share: True to write the difference in points (0.01 is 1 point); False to write it with three digits.
            sign: ``+`` to write the sign of a positive difference.
        """
        return f"{self.written('.1f', 100, sign)} points" if share else self.written(".3g", sign=sign)


def _signed(value: float, sign: str, form: str) -> str:
    """Return a formatted number, without its sign if it rounds to zero."""
    text = f"{value:{sign}{form}}"
    return text.lstrip("+-") if not float(text) else text


def seed_count(counts: Iterable[int]) -> str:
    """Return the numbers of seeds of several rows as text, such as ``3 seeds`` or ``1 to 3 seeds``."""
    known = sorted(set(counts))
    if not known:
        return "no seed"
    if len(known) > 1:
        return f"{known[0]} to {known[-1]} seeds"
    return "one seed" if known == [1] else f"{known[0]} seeds"


def estimate(values: Sequence[float], bounds: tuple[float, float] = EVERYWHERE) -> Estimate | None:
    """Return the mean of values with its Student's t interval at level ``CONFIDENCE``, or None without values.

    Args:
        bounds: lowest and highest possible value, at which the interval is cut off.

    Raises:
        TypeError: a value is not a number.
    """
    if not values:
        return None
    if odd := [value for value in values if not isinstance(value, Real)]:
        raise TypeError(f"the values of an estimate must be numbers, one for each seed; got {odd[0]!r}")
    count = len(values)
    mean = statistics.fmean(values)
    if count == 1:
        return Estimate(mean, None, 1)
    return _within(mean, float(stdtrit(count - 1, _UPPER)) * deviation(values) / math.sqrt(count), count, bounds)


_UPPER = (1 + CONFIDENCE) / 2
"""Level of the quantile at the upper end of an interval."""


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of two or more values, with n - 1 degrees of freedom."""
    mean = statistics.fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _within(mean: float, half: float, count: int, bounds: tuple[float, float]) -> Estimate:
    """Return an estimate whose interval is cut at the bounds."""
    low, high = max(mean - half, min(bounds[0], mean)), min(mean + half, max(bounds[1], mean))
    return Estimate(mean, half, count, None if (low, high) == (mean - half, mean + half) else (low, high))


@dataclass(frozen=True, slots=True)
class Resolution:
    """Smallest differences between scores that a metric can show on a test split, and the direction in which scores are better."""

    sign: int
    """Factor by which scores are multiplied so that larger ones are better: 1 or, if lower scores are better, -1."""
    share: bool
    """True for a percentage metric, whose differences are in points."""
    examples: int | None
    """Number of test examples if the metric is a share of the examples, such as accuracy; else None."""
    scores: tuple[float, float]
    """Lowest and highest possible score."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest possible difference of two scores."""
        return self.scores[0] - self.scores[1], self.scores[1] - self.scores[0]

    @property
    def grain(self) -> float:
        """Smallest step between two scores, or 0 if the metric is not a share of the examples."""
        return 1 / self.examples if self.examples else 0.0

    def ties(self, difference: float, larger: float) -> bool:
        """Return True if a difference between two scores is too small to count, whatever a significance test says.

        Args:
            larger: the larger of the two scores in absolute value.
        """
        return abs(difference) < SMALLEST * (1.0 if self.share else abs(larger))

    def floor(self, mean: float) -> float:
        """Return the smallest standard deviation to assume for scores with this mean: the binomial error of the test set or the
        rounding error of a score, whichever is larger."""
        binomial = math.sqrt(max(0.0, mean * (1 - mean)) / self.examples) if self.examples else 0.0
        return max(binomial, _ROUNDING * abs(mean))


def resolution(task: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]]) -> Resolution:
    """Return the resolution of a task's scores: how small a difference between two scores can count.

    Args:
        data: recorded facts about each split, such as the number of its examples.
    """
    metric = task["metric"]
    examples = data.get("test", {}).get("examples") if metric in SHARES_OF_EXAMPLES else None
    sign = 1 if task.get("higher_is_better", True) else -1
    return Resolution(sign, metric in SHARES, examples, bounds(metric))


def paired(these: Mapping[int, float], those: Mapping[int, float]) -> Estimate | None:
    """Return the mean of ``these`` minus ``those`` (values by seed) over their shared seeds. If no seed is shared, return None."""
    return estimate([these[seed] - those[seed] for seed in sorted(these.keys() & those.keys())])


def welch(
    these: Sequence[float],
    those: Sequence[float],
    floors: tuple[float, float] = (0.0, 0.0),
    bounds: tuple[float, float] = EVERYWHERE,
) -> tuple[Estimate, float]:
    """Return the difference of two means with its interval, and the two-sided p value of Welch's t test (1947).

    If a side has only one value, there is no interval, and the p value is 1.

    Args:
        these: one value per seed.
        those: values that are subtracted, of the same or of other seeds.
        floors: smallest standard deviations to assume for ``these`` and for ``those``.
        bounds: lowest and highest possible difference, at which the interval is cut off.
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
    return _within(difference, float(stdtrit(freedom, _UPPER)) * error, count, bounds), _two_sided(freedom, difference / error)


def _two_sided(freedom: float, t: float) -> float:
    """Return the probability that Student's t with ``freedom`` degrees of freedom is at least as far from 0 as ``t``."""
    return 2 * float(stdtr(freedom, -abs(t)))


def paired_p_value(differences: Sequence[float], grain: float = 0.0) -> float:
    """Return the two-sided p value of a paired t test.

    Rounding scores to steps of ``grain`` can hide a spread over seeds. The variance of the rounding error is therefore added
    to the variance of the differences.

    Args:
        differences: differences of two scores at two or more seeds.
        grain: smallest step between scores, such as 1 / examples. A difference of two rounded scores has the rounding variance
            grain² / 6.
    """
    mean = statistics.fmean(differences)
    error = math.sqrt((deviation(differences) ** 2 + grain**2 / 6) / len(differences))
    return 1.0 if mean == 0 else _two_sided(len(differences) - 1, mean / error if error else math.inf)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values that are corrected for their number (Holm 1979).

    If corrected values of at most 0.05 count as significant, the probability of at least one false positive is at most 5 %, even
    for dependent tests.
    """
    corrected, most = [0.0] * len(p_values), 0.0
    for passed, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        most = max(most, min(1.0, (len(p_values) - passed) * p_values[at]))
        corrected[at] = most
    return corrected


@dataclass(frozen=True, slots=True)
class Successes:
    """Number of seeds with which training met the criterion (see ``until_criterion``), with the exact interval of their share."""

    count: int
    of: int
    low: float
    high: float

    @property
    def order(self) -> float:
        """Share of seeds that met the criterion, by which tables are sorted."""
        return self.count / self.of

    def __str__(self) -> str:
        return f"{self.count} of {self.of} ({100 * self.low:.0f} to {100 * self.high:.0f} %)"


@dataclass(frozen=True, slots=True)
class Soon:
    """Median number of training steps until the validation score was 90 % of the highest possible score, with its interval. If
    the median is None, it is more than ``cap`` steps. If an end of the interval is None, the seeds do not determine it."""

    median: float | None
    low: float | None
    high: float | None
    cap: int
    """Largest number of training steps among the seeds that did not reach 90 % or, if all reached it, among all seeds."""

    @property
    def order(self) -> float:
        """Median number of steps, by which tables are sorted; infinity if the median is None."""
        return float("inf") if self.median is None else self.median

    def __str__(self) -> str:
        if self.median is None:
            return f"> {self.cap:,}"
        return f"{self.median:,.0f} ({self.low:,.0f} to {'?' if self.high is None else f'{self.high:,.0f}'})"


def until_criterion(runs: Sequence[RunRecord]) -> bool:
    """Return True if every run has a budget that ends training when the validation score meets the criterion, which is 99 % of the
    highest possible score."""
    return all(run.spec.budget.until == "criterion" and run.spec.budget.ceiling for run in runs)


def successes(runs: Sequence[RunRecord]) -> Successes | None:
    """Return how many of a row's runs met the criterion; failed runs count as not having met it. For runs without a criterion,
    return None."""
    if not until_criterion(runs):
        return None
    count = sum(run.status == "done" and run.stopped == "criterion" for run in runs)
    return Successes(count, len(runs), *share_interval(count, len(runs)))


def share_interval(count: int, of: int) -> tuple[float, float]:
    """Return the exact interval (Clopper and Pearson) for the probability of success, after ``count`` successes in ``of``
    trials."""
    tail = (1 - CONFIDENCE) / 2
    low = float(betaincinv(count, of - count + 1, tail)) if count else 0.0
    return low, float(betaincinv(count + 1, of - count, 1 - tail)) if count < of else 1.0


def steps_to_90(runs: Sequence[RunRecord]) -> Soon | None:
    """Return the median number of training steps until the validation score was 90 % of the highest possible score. A failed run
    counts until its last validation. Return None if the runs have no criterion, or if none of them was validated."""
    known = [run for run in runs if run.curve]
    if not until_criterion(runs) or not known:
        return None
    there = [steps for run in known if (steps := run.steps_to_90) is not None]
    ends = [int(run.curve[-1]["step"]) for run in known if run.steps_to_90 is None]
    median, low, high = median_time(there, ends)
    return Soon(median, low, high, max(ends or [int(run.curve[-1]["step"]) for run in known]))


def median_time(times: Sequence[float], censored: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the Kaplan-Meier median of times until an event, and the lower and the upper end of its interval. The median is the
    first time at which at most half of the cases are still without the event.

    A median or end that the observations do not determine is None.

    Args:
        times: times at which the event occurred.
        censored: for the other cases, the times at which their observation ended without the event.
    """
    ends: dict[str, float | None] = dict.fromkeys(("median", "low", "high"))
    share, greenwood, z = Fraction(1), 0.0, NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    for time in sorted(set(times)):
        events, watched = times.count(time), sum(other >= time for other in (*times, *censored))
        share *= Fraction(watched - events, watched)  # exact, because the median is where it is one half
        if events < watched:  # at the last event of all, the bands are not defined
            greenwood += events / (watched * (watched - events))
            spread = z * math.sqrt(greenwood) / -math.log(share)
            lower, upper = float(share) ** math.exp(spread), float(share) ** math.exp(-spread)
        else:
            lower, upper = 0.0, 1.0
        for name, part in (("median", share), ("low", lower), ("high", upper)):
            if ends[name] is None and part <= 0.5:
                ends[name] = float(time)
    return ends["median"], ends["low"], ends["high"]
