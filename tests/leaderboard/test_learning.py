"""Successes with exact intervals, and medians of censored times, against published figures and figures computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from make import make_record, until_criterion

from attn_zoo.leaderboard import render, tables
from attn_zoo.leaderboard.statistics import median_time, steps_to_90, successes
from attn_zoo.records import Budget, RunRecord, Tuning


def run(stopped: str, to_90: float | None, last: int = 2400, *, ceiling: float = 1.0, **changes: Any) -> RunRecord:
    budget = Budget(schedule="constant", until="criterion", ceiling=ceiling)
    reached = {"90": None if to_90 is None else {"steps": to_90}}
    facts = {"stopped": stopped or None, "reached": reached, "curve": ({"step": last},), **changes}
    return make_record(spec_budget=budget, **facts)


@pytest.mark.parametrize(
    ("count", "of", "low", "high"), [(3, 3, 0.292, 1.0), (5, 5, 0.478, 1.0), (8, 10, 0.444, 0.975), (0, 5, 0.0, 0.522)]
)
def test_successes_have_the_interval_of_clopper_and_pearson(count, of, low, high):
    found = successes([run("criterion", 100)] * count + [run("cap", None)] * (of - count))
    assert found is not None and (found.count, found.of) == (count, of)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-4)
    assert str(found).startswith(f"{count} of {of} (")


def test_a_run_that_failed_is_no_success_and_has_no_time():
    runs = [run("criterion", 100), run("criterion", 100, status="failed", curve=())]
    assert str(successes(runs)) == "1 of 2 (1 to 99 %)"
    assert str(steps_to_90(runs)) == "100 (100 to ?)"


def test_runs_that_diverged_are_later_than_their_last_validation():
    diverged = [run("", None, 1000, status="diverged") for _ in range(3)]
    assert str(steps_to_90([run("criterion", 100), run("criterion", 200), *diverged])) == "> 1,000", "two of five came so far"


def test_nothing_is_said_of_runs_with_a_fixed_budget():
    fixed = make_record()
    assert successes([fixed]) is None and steps_to_90([fixed]) is None
    assert successes([run("cap", None, ceiling=0.0)]) is None, "a perplexity has no ceiling"


def test_times_of_leukaemia_patients():
    """Weeks in remission under 6-MP (Freireich et al. 1963), for which textbooks give a median of 23, from 13, no upper end."""
    times = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    censored = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    assert median_time(times, censored) == (23, 13, None)


def test_placebo_group_has_an_interval():
    """The other group of the same trial: median 8 weeks, with log-log bands 4 to 11."""
    times = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]
    assert median_time(times, []) == (8, 4, 11)


def test_the_median_is_where_exactly_half_remain_whatever_rounding_does():
    """In floating point the product of the shares is 0.5000000000000001 after five of ten."""
    assert median_time([1350, 1350, 1800, 1850, 1950, 2250], [2250] * 4)[0] == 1950


def test_a_row_that_mostly_needs_more_than_the_cap():
    assert str(steps_to_90([run("criterion", 150, 300), run("cap", None), run("cap", None)])) == "> 2,400"
    assert str(steps_to_90([run("cap", None)] * 3)) == "> 2,400"


def test_a_table_until_the_criterion_says_whether_and_how_soon_each_row_learns():
    (table,) = tables([*until_criterion("softmax", [150, 150, 200, 200, 250]), *until_criterion("linear", [600, None, None])])
    said = {row.attention: (str(row.learned), str(row.steps_to_90)) for row in table.rows}
    assert said == {"softmax": ("5 of 5 (48 to 100 %)", "200 (150 to ?)"), "linear": ("1 of 3 (1 to 91 %)", "> 2,400")}
    text = render([table], "github")
    assert "learned" in text and "5 of 5 (48 to 100 %)" in text and "steps to 90 %" in text
    (fixed,) = tables([make_record(seed=seed) for seed in (1, 2, 3)])
    assert "learned" not in render([fixed], "github")
    assert json.loads(render([table], "json"))[0]["rows"][0]["learned"]["count"] in (1, 5)


def test_seeds_of_a_search_that_draw_their_own_data_are_one_row():
    tuning = Tuning(study="s", space={"budget.learning_rate": "choice(0.003,0.01)"}, trials=2, failed=0, seed=0)
    budget = Budget(schedule="constant", until="criterion", ceiling=1.0)

    def chosen(seed: int, rate: float, day: int) -> RunRecord:
        own, started = {"data_seed": seed}, {"started": f"2026-01-0{day}T00:00:00+00:00"}
        given: dict[str, Any] = {"spec_budget": replace(budget, learning_rate=rate), "spec_task_options": own}
        return make_record("softmax", seed=seed, tuning=tuning, stopped="cap", environment=started, **given)

    records = [chosen(1, 0.01, day=1), *(chosen(seed, 0.003, day=2) for seed in (1, 2, 3))]
    (table,) = tables(records)
    assert [row.seeds for row in table.rows] == [(1, 2, 3)] and str(table.rows[0].learned).startswith("0 of 3")
