"""Distributions in plain Python against scipy's."""

from __future__ import annotations

import pytest
from scipy import stats

from attn_zoo.leaderboard.statistics import beta_quantile, t_quantile, t_tail

FREEDOMS = (0.7, 1, 2, 2.3, 4, 10, 57.5, 400)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_tails_and_quantiles_of_students_t(freedom):
    for t in (0.0, 0.01, 0.1, 1.0, 3.0, -3.0, 12.0, 60.0, 4000.0):
        assert t_tail(freedom, t) == pytest.approx(2 * stats.t.sf(abs(t), freedom), rel=1e-9)
    for level in (0.6, 0.95, 0.975, 0.9995):
        assert t_quantile(freedom, level) == pytest.approx(stats.t.ppf(level, freedom), rel=1e-9)
    assert t_tail(freedom, float("inf")) == 0.0


@pytest.mark.parametrize(("a", "b"), [(1, 3), (5, 1), (3, 3), (10, 2), (1, 1), (200, 7)])
def test_quantiles_of_the_beta_distribution(a, b):
    for level in (0.001, 0.025, 0.5, 0.975):
        assert beta_quantile(a, b, level) == pytest.approx(stats.beta.ppf(level, a, b), rel=1e-9)
