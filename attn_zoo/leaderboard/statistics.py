"""Statistics over seeds: means with confidence intervals, and p values of differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
QUANTISATION = 1 / 6
"""Variance of a difference of two figures that were each rounded to a grid of 1."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean over ``count`` seeds and half width of its interval, None with one seed, which says nothing about the spread."""

    mean: float
    half_width: float | None
    count: int

    @property
    def low(self) -> float:
        """Lower end of the interval; the mean where it is not known."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """Upper end of the interval; the mean where it is not known."""
        return self.mean + (self.half_width or 0.0)

    def minus(self, constant: float) -> Estimate:
        """Subtract a constant that is known exactly."""
        return Estimate(self.mean - constant, self.half_width, self.count)

    def written(self, form: str, scale: float = 1.0, sign: str = "") -> str:
        """Format as ``mean ± half width``, the latter where it is known."""
        spread = "" if self.half_width is None else f" ± {scale * self.half_width:{form}}"
        return f"{scale * self.mean:{sign}{form}}{spread}"

    def in_points(self, share: bool, sign: str = "+") -> str:
        """Format a difference of scores: shares in points of a hundred, others with three digits."""
        return f"{self.written('.1f', 100, sign)} points" if share else self.written(".3g", sign=sign)


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and Student's t interval of ``CONFIDENCE``; None where there is no value.

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
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Estimate(mean, t_quantile(count - 1, (1 + CONFIDENCE) / 2) * deviation / math.sqrt(count), count)


def paired(these: Mapping[int, float], those: Mapping[int, float]) -> Estimate | None:
    """Mean of ``these`` minus ``those`` at common seeds, where the effect of a seed on both cancels; None without a common seed."""
    return estimate([these[seed] - those[seed] for seed in sorted(these.keys() & those.keys())])


def pair_p_values(scores: Any, grain: float = 0.0) -> Floats:
    """Two-sided p values of paired t tests between all rows.

    Args:
        scores: shape (..., rows, seeds); NaN where a row has no score at a seed, which is then no part of that row's pairs.
        grain: smallest step between scores, such as 1 / examples. Agreement between seeds that is closer than rounding to
            this step allows is a coincidence of rounding, so the variance of rounding is added to that of differences.
            Without this, most tables of 15 equal rows with 3 seeds on a coarse test rank some row falsely.

    Returns:
        Shape (..., rows (rows - 1) / 2), in the order of ``numpy.triu_indices(rows, 1)``; 1 where fewer than two seeds are shared.
    """
    from scipy.special import stdtr  # imported here: takes half a second, and most commands do not need it

    scores = np.asarray(scores, dtype=float)
    first, second = np.triu_indices(scores.shape[-2], 1)
    differences = scores[..., first, :] - scores[..., second, :]
    shared = ~np.isnan(differences)
    count = shared.sum(axis=-1)
    mean = np.where(shared, differences, 0.0).sum(axis=-1) / np.maximum(count, 1)
    squares = np.where(shared, (differences - mean[..., None]) ** 2, 0.0).sum(axis=-1)
    variance = squares / np.maximum(count - 1, 1) + QUANTISATION * grain**2
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.where(mean == 0, 0.0, np.abs(mean) / np.sqrt(variance / np.maximum(count, 1)))
    return np.where(count < 2, 1.0, 2 * stdtr(np.maximum(count - 1, 1), -statistic))


def holm(p_values: Any) -> Floats:
    """Correct p values for their number along the last axis (Holm 1979): if values of at most 0.05 are called different, at most
    5 % of families contain any error, however the values depend on each other."""
    p_values = np.asarray(p_values, dtype=float)
    count = p_values.shape[-1]
    order = np.argsort(p_values, axis=-1)
    ascending = np.take_along_axis(p_values, order, axis=-1) * np.arange(count, 0, -1)
    corrected = np.empty_like(ascending)
    np.put_along_axis(corrected, order, np.minimum(np.maximum.accumulate(ascending, axis=-1), 1.0), axis=-1)
    return corrected


def benjamini_hochberg(p_values: Any) -> Floats:
    """Correct p values along the last axis (Benjamini and Hochberg 1995): if values of at most 0.05 are called different, at most
    5 % of these are expected to be equal."""
    p_values = np.asarray(p_values, dtype=float)
    count = p_values.shape[-1]
    order = np.argsort(p_values, axis=-1)
    ascending = np.take_along_axis(p_values, order, axis=-1) * count / np.arange(1, count + 1)
    corrected = np.empty_like(ascending)
    smallest_above = np.minimum.accumulate(ascending[..., ::-1], axis=-1)[..., ::-1]
    np.put_along_axis(corrected, order, np.minimum(smallest_above, 1.0), axis=-1)
    return corrected


@cache
def t_quantile(freedom: int, level: float) -> float:
    """Quantile of Student's t distribution at ``level``."""
    from scipy.special import stdtrit  # imported here: takes half a second, and most commands do not need it

    return float(stdtrit(freedom, level))
