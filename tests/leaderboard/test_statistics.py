"""Tests and corrections against scipy's and against their definitions; intervals end where the metric does."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from attn_zoo.leaderboard.statistics import Estimate, estimate, holm, paired_p_value, welch


@pytest.mark.parametrize("counts", [(3, 3), (5, 3), (2, 10)])
def test_welch_is_scipys(counts):
    chance = np.random.default_rng(sum(counts))
    for _ in range(20):
        these, those = (list(chance.normal(0.7, chance.uniform(0.001, 0.2), count)) for count in counts)
        expected = stats.ttest_ind(these, those, equal_var=False)
        found, p = welch(these, those)
        ends = expected.confidence_interval(0.95)
        assert p == pytest.approx(expected.pvalue, rel=1e-9)
        assert (found.low, found.high) == pytest.approx((ends.low, ends.high), rel=1e-9)
        assert found.mean == pytest.approx(np.mean(these) - np.mean(those)) and found.count == min(counts)


def test_a_floor_stands_in_for_a_smaller_deviation():
    """Three equal scores have the deviation of the floor; scores that vary more keep theirs."""
    found, p = welch([0.9, 0.9, 0.9], [0.8, 0.9, 0.7], (0.02, 0.02))
    expected = stats.ttest_ind_from_stats(0.9, 0.02, 3, 0.8, 0.1, 3, equal_var=False)
    assert p == pytest.approx(expected.pvalue, rel=1e-9)
    error, freedom = (0.02**2 / 3 + 0.1**2 / 3) ** 0.5, (0.02**2 + 0.1**2) ** 2 / ((0.02**4 + 0.1**4) / 2)
    assert found.half_width == pytest.approx(stats.t.ppf(0.975, freedom) * error, rel=1e-9)


def test_scores_without_any_deviation_differ_or_are_equal():
    assert welch([0.5, 0.5], [0.5, 0.5]) == (Estimate(0.0, 0.0, 2), 1.0)
    assert welch([0.5, 0.5], [0.4, 0.4])[1] == 0.0


def test_one_seed_has_no_interval_and_shows_no_difference():
    found, p = welch([1.0], [0.1, 0.2, 0.1], (0.01, 0.01))
    assert found.half_width is None and p == 1.0


def test_a_paired_test_is_scipys():
    chance = np.random.default_rng(1)
    differences = list(chance.normal(0.02, 0.05, 6))
    assert paired_p_value(differences) == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=1e-9)
    assert paired_p_value([0.0, 0.0]) == 1.0 and paired_p_value([0.1, 0.1]) < 1e-6
    assert paired_p_value([0.01, 0.01, 0.01], grain=0.01) == pytest.approx(2 * stats.t.sf(18**0.5, 2), rel=1e-9)


def test_holm_by_hand_and_by_its_definition():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.6]) == pytest.approx([1.0, 1.0]) and holm([]) == []
    chance = np.random.default_rng(6)
    for _ in range(50):
        p_values = list(chance.random(12) ** 3)
        steps = [(12 - sum(other < p for other in p_values)) * p for p in p_values]
        expected = [min(1.0, max(step for step, other in zip(steps, p_values, strict=True) if other <= p)) for p in p_values]
        assert holm(p_values) == pytest.approx(expected)


def test_an_interval_ends_where_the_metric_does():
    free, within = estimate([1.0, 1.0, 0.2]), estimate([1.0, 1.0, 0.2], (0.0, 1.0))
    assert free and within and (free.mean, free.half_width) == (within.mean, within.half_width)
    assert free.high > 1 and within.high == 1.0 and within.low == max(0.0, free.low)
    assert within.written(".1f", 100) == "73.3 (0.0 to 100.0)" and free.written(".1f", 100) == "73.3 ± 114.7"
    assert within.minus(0.1).high == pytest.approx(0.9) and within.times(-1).low == -1.0
    sure = estimate([0.5, 0.51, 0.52], (0.0, 1.0))
    assert sure and sure.ends is None and sure.written(".1f", 100) == "51.0 ± 2.5"


def test_an_interval_that_rounds_to_its_mean_is_written_as_zero_wide():
    found = estimate([1.0, 1.0, 0.9999], (0.0, 1.0))
    assert found and found.ends and found.written(".1f", 100) == "100.0 ± 0.0"


@pytest.mark.parametrize("count", [3, 5])
def test_an_interval_covers_the_truth_as_often_as_it_says(count):
    found = [estimate(list(scores)) for scores in np.random.default_rng(0).normal(0.7, 0.02, (4000, count))]
    hits = sum(one is not None and one.half_width is not None and abs(one.mean - 0.7) <= one.half_width for one in found)
    assert 0.94 < hits / 4000 < 0.96
