"""Student's t distribution and quantiles of the beta distribution, in plain Python: importing scipy takes longer than a table."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

_CLOSE = 1e-15
"""Relative change at which the continued fraction has converged."""
_TERMS = 10_000
_SMALL_STEP = 1e-13
"""Relative step at which Newton's method has converged."""


def t_tail(freedom: float, t: float) -> float:
    """Return the two-sided p value: the probability that Student's t is at least as far from 0 as ``t``."""
    return 0.0 if math.isinf(t) else beta_share(freedom / 2, 0.5, freedom / (freedom + t * t))


@cache
def t_quantile(freedom: float, level: float) -> float:
    """Return the quantile of Student's t at ``level``, which is above one half.

    By Newton's method from the normal quantile, which lies below: the tail is convex, so no step goes too far.
    """
    t = NormalDist().inv_cdf(level)
    front = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    for _ in range(_TERMS):
        density = math.exp(front - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        step = (t_tail(freedom, t) / 2 - (1 - level)) / density
        t += step
        if abs(step) < _SMALL_STEP * t:
            break
    return t


@cache
def beta_quantile(a: float, b: float, level: float) -> float:
    """Return the quantile of the beta distribution with the parameters ``a`` and ``b``, by bisection."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if beta_share(a, b, middle) < level else (low, middle)
    return high


def beta_share(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), by its continued fraction (Abramowitz and Stegun 1964, 26.5.8)."""
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges slowly here, and fast for the other tail
        return 1 - beta_share(b, a, 1 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(front) / a / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """Return 1 + d1 / (1 + d2 / (1 + ...)) by the method of Lentz (1976)."""
    value, c, d = 1.0, 1.0, 0.0
    for at in range(1, _TERMS):
        m = at // 2
        part = (-(a + m) * (a + b + m) if at % 2 else m * (b - m)) * x / ((a + at - 1) * (a + at))
        d = 1 / (1 + part * d)
        c = 1 + part / c
        value *= c * d
        if abs(c * d - 1) < _CLOSE:
            break
    return value
