"""Estimate of the remaining time of the checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from attn_zoo.conformance import ATTENTION_CHECKS, Case, Result
from attn_zoo.conformance.remaining import APART, WEIGHTS, Remaining


def replay(seconds: Sequence[float], cases: Sequence[Case]) -> Iterator[tuple[float, float | None]]:
    """Yield the time and the estimate at the beginning and in the middle of each case, which takes so many seconds."""
    now, done = 0.0, list[Result]()
    remaining = Remaining(cases, lambda: now)
    for case, taken in zip(cases, seconds, strict=True):
        remaining.begin(done)
        yield now, remaining.seconds()
        now += taken / 2
        yield now, remaining.seconds()
        now += taken / 2
        done.append(Result(case, "passed" if taken else "skipped", "", taken))


def cases_of(checks: Sequence[str], variant: str = "default") -> list[Case]:
    return [Case("thing", check, "Says so.", lambda: None, variant, "eager") for check in checks]


def test_a_slow_definition_does_not_slow_the_other_checks_down_in_the_estimate():
    names = ["padding_has_no_influence", "eager_agrees_with_the_definition", "every_size_runs_in_every_type"]
    estimates = [left for _, left in replay([0.1, 60.0, 0.9], cases_of(names))]
    assert estimates[4] == pytest.approx(0.1 * WEIGHTS[names[2]] / WEIGHTS[names[0]])


def test_another_variant_is_expected_to_take_a_part_of_the_defaults():
    names = ["every_size_runs_in_every_type"]
    estimates = [left for _, left in replay([10.0, 3.0], cases_of(names) + cases_of(names, "wide"))]
    assert estimates == [None, None, pytest.approx(3.0), pytest.approx(1.5)]


def test_there_is_no_estimate_before_enough_is_done_or_while_a_check_takes_far_longer_than_expected():
    names = ["every_size_runs_in_every_type", "padding_has_no_influence", "cost_formula_is_exact"]
    first, _, second, overdue, third, _ = (left for _, left in replay([7.0, 100.0, 0.8], cases_of(names)))
    assert first is None and overdue is None
    assert second is not None and third is not None


def test_cases_that_cannot_run_here_cost_nothing():
    gone = Case("thing", "every_size_runs_in_every_type", "Says so.", lambda: None, "default", "triton", "needs CUDA")
    (_, _, after, _) = (left for _, left in replay([2.0, 0.0], [*cases_of(["padding_has_no_influence"]), gone]))
    assert after == 0.0


def test_weights_are_those_of_checks():
    assert set(WEIGHTS) <= set(ATTENTION_CHECKS)
    assert set(APART) <= set(ATTENTION_CHECKS)
