"""p values of differences between rows of few seeds, with spreads moderated over all rows of a table.

Model: score = row + seed + noise, and each row's noise is normal with a spread (standard deviation) of its own. Three seeds say
little about one spread, but forty rows say much about how spreads vary. Smyth 2004 ("Linear models and empirical Bayes methods for
assessing differential expression in microarray experiments", SAGMB 3) therefore gives spreads a prior that is estimated from all
rows: an inverse gamma distribution, which is overconfident where precise and noisy rows share a table. Here the prior is free: a
histogram over spreads, fitted by the EM algorithm (Laird 1978, JASA 73) from a start that is flat in the logarithm of spreads. The
fit stops after a number of steps that grows with the number of rows, because few rows support little detail ("smoothing by
roughening", Laird and Louis 1991, Computational Statistics & Data Analysis 12). Without any step this is the Behrens-Fisher test.

A pair's p value is the larger one of two tests:

- the tail probability of its difference, averaged over what is known of both rows' spreads (a partially Bayes p value; Ignatiadis
  and Sen 2025, "Empirical partially Bayes multiple testing and compound chi-square decisions", Annals of Statistics 53);
- a t test with the variance pooled over the two rows and all rows that score like one of them at some seed. Rows that begin to
  learn at some seeds only, or fall far at some, do not have normal noise: by chance one of two such rows is high at all its seeds
  and the other low, and only the spread of similar rows reveals it. Left out are rows that score like the better one at some seeds
  and higher at the others, or like the worse one and lower at the others: their spread speaks for a larger difference.

Differs from the sources: both spreads of a pair are unknown, and the second test is added.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attn_zoo.leaderboard.statistics import QUANTISATION, Floats, pair_p_values

_BELOW, _ABOVE = 3.0, 30.0
"""Factors by which the histogram extends below the smallest and above the largest observed spread."""
_ALIKE = 0.15
"""Greatest distance between a score and the mean of a row that count as alike, relative to the difference of the pair."""
_SWEEPS = 8
"""Number of iterations of the additive fit."""
_LEAST = 1e-12
"""Smallest variance of a row, relative to the largest, so that every variance has a logarithm."""
_NEGLIGIBLE = 1e-10
"""Largest weight of a pair of spreads that is left out of an average."""


def moderated_p_values(scores: Any, grain: float = 0.0) -> Floats:
    """Two-sided p values of all pairs of rows; a paired t test where there are only two rows.

    Args:
        scores: shape (..., rows, seeds); NaN where a row has no score at a seed. Any two rows share two seeds or more.
        grain: smallest step between scores, such as 1 / examples. The variance of rounding to it is added to that of each row.

    Returns:
        Shape (..., rows (rows - 1) / 2), in the order of ``numpy.triu_indices(rows, 1)``.
    """
    scores = np.asarray(scores, dtype=float)
    rows = scores.shape[-2]
    if rows == 2:
        return pair_p_values(scores, grain)
    means, luck, variances, freedom = _additive_fit(scores, grain)
    seen = ~np.isnan(scores)
    first, second = np.triu_indices(rows, 1)
    shared = (seen[..., first, :] & seen[..., second, :]).sum(axis=-1)
    differences = np.abs(np.nanmean(scores[..., first, :] - scores[..., second, :], axis=-1)) * np.sqrt(shared)
    spreads, weights = _posterior(variances, freedom)
    moderated = _tail(differences, spreads, weights[..., first, :], weights[..., second, :])
    return np.maximum(moderated, _pooled_alike(differences, means, scores - luck, variances, freedom))


def _additive_fit(scores: Floats, grain: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Means of rows, effects of seeds on all rows (..., 1, seeds), variances of rows and their degrees of freedom.

    The effect of a seed is a weighted mean over rows, in which rows that vary more than the median row have less weight, because
    otherwise one row of large spread would make all others seem to have one.
    """
    seen = ~np.isnan(scores)
    seeds = seen.sum(axis=-1)
    rounding = QUANTISATION / 2 * grain**2
    luck = np.zeros(scores.shape[-1:])
    weights = np.ones(scores.shape[:-1])
    for _ in range(_SWEEPS):
        row = np.nanmean(scores - luck, axis=-1, keepdims=True)
        shares = np.where(seen, weights[..., None], 0.0)
        shares /= np.maximum(shares.sum(axis=-2, keepdims=True), _LEAST)
        luck = np.nansum(shares * (scores - row), axis=-2, keepdims=True)
        freedom = np.where(seen, 1 - shares, 0.0).sum(axis=-1) * (1 - 1 / seeds)
        variances = np.nansum((scores - row - luck) ** 2, axis=-1) / freedom + rounding
        variances = np.maximum(variances, np.maximum(_LEAST * variances.max(axis=-1, keepdims=True), np.finfo(float).tiny))
        weights = 1 / np.maximum(variances, np.median(variances, axis=-1, keepdims=True))
        weights /= weights.max(axis=-1, keepdims=True)
    return row[..., 0], luck, variances, freedom


def _posterior(variances: Floats, freedom: Floats) -> tuple[Floats, Floats]:
    """Spreads of the histogram, shape (..., spreads), and each row's distribution over them, shape (..., rows, spreads)."""
    low = np.log(variances.min(axis=-1)) / 2 - math.log(_BELOW)
    high = np.log(variances.max(axis=-1)) / 2 + math.log(_ABOVE)
    count = math.ceil(float((high - low).max() * np.sqrt(2 * freedom.max()))) + 1  # grid step: width of a likelihood
    spreads = np.exp(low[..., None] + (high - low)[..., None] * np.linspace(0, 1, count))
    ratio = (freedom * variances)[..., None] / spreads[..., None, :] ** 2
    log_likelihood = freedom[..., None] / 2 * np.log(ratio) - ratio / 2
    likelihood = np.exp(log_likelihood - log_likelihood.max(axis=-1, keepdims=True))
    weights = likelihood / likelihood.sum(axis=-1, keepdims=True)
    for _ in range(_steps(variances.shape[-1])):
        weights = likelihood * weights.mean(axis=-2, keepdims=True)
        weights /= weights.sum(axis=-1, keepdims=True)
    return spreads, weights


def _steps(rows: int) -> int:
    """Number of EM steps, from simulations: more give more power, but more false ranks where few rows vary more than all others."""
    return (rows - 1) // 2


def _tail(differences: Floats, spreads: Floats, first: Floats, second: Floats) -> Floats:
    """Probability of differences at least as large, averaged over both rows' spreads; differences are times the root of seeds."""
    from scipy.special import ndtr  # imported here: takes half a second, and most commands do not need it

    found = np.zeros(differences.size)
    distance, count = differences.ravel(), spreads.shape[-1]
    first, second = (np.moveaxis(weights, -1, 0).reshape(count, -1) for weights in (first, second))
    for one in range(count):
        for other in range(one + 1):
            weight = first[one] * second[other]
            if other < one:
                weight += first[other] * second[one]
            kept = np.flatnonzero(weight > _NEGLIGIBLE)
            if kept.size:
                error = np.hypot(spreads[..., one], spreads[..., other])[..., None]
                error = np.broadcast_to(error, differences.shape).ravel()[kept]
                found[kept] += weight[kept] * 2 * ndtr(-distance[kept] / error)
    return np.minimum(found, 1.0).reshape(differences.shape)


def _pooled_alike(differences: Floats, means: Floats, aligned: Floats, variances: Floats, freedom: Floats) -> Floats:
    """p values of t tests with the mean variance of the two rows and of all rows that score like one of them at some seed.

    Rows that at other seeds are further from the other row of the pair than the two are from each other are left out.

    Args:
        aligned: scores minus the effects of seeds on all rows.
    """
    from scipy.special import stdtr  # imported here: takes half a second, and most commands do not need it

    rows = means.shape[-1]
    first, second = np.triu_indices(rows, 1)
    nearest = np.nanmin(np.abs(aligned[..., None, :, :] - means[..., :, None, None]), axis=-1)
    nearest[..., range(rows), range(rows)] = 0.0
    least, most = np.nanmin(aligned, axis=-1)[..., None, :], np.nanmax(aligned, axis=-1)[..., None, :]
    gap = np.abs(means[..., first] - means[..., second])[..., None]
    tolerance = _ALIKE * gap
    alike = np.zeros((*means.shape[:-1], len(first), rows), dtype=bool)
    for own, other in ((first, second), (second, first)):
        mean, better = means[..., own][..., None], (means[..., own] > means[..., other])[..., None]
        upwards = (least >= mean - tolerance) & (most > mean + gap)
        downwards = (most <= mean + tolerance) & (least < mean - gap)
        alike |= (nearest[..., own, :] <= tolerance) & ~np.where(better, upwards, downwards)
        alike[..., range(len(own)), own] = True
    variance = (alike * variances[..., None, :]).sum(axis=-1) / alike.sum(axis=-1) * rows / (rows - 1)
    return 2 * stdtr(freedom.sum(axis=-1)[..., None], -differences / np.sqrt(2 * variance))
