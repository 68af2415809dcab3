"""Boards at equal budgets: what was seen within them, how they are chosen, what is over."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from make import PERPLEXITY, make_record

from attn_zoo.leaderboard import render, tables
from attn_zoo.records import Budget, RunRecord


def looks(seconds_a_step: float, *valid: float) -> tuple[dict[str, float], ...]:
    return tuple(
        {"step": 10 * at, "train_seconds": 10 * at * seconds_a_step, "train_loss": 1.0, "valid": score}
        for at, score in enumerate(valid, start=1)
    )


def run(
    name: str, seed: int = 1, *, curve: tuple[dict[str, float], ...] = (), peak: float = 2**20, flops: int = 100, **changes: Any
):
    counted = {"parameters": 10, "attention_parameters": 5, "flops_per_example": flops}
    return make_record(name, seed=seed, curve=curve, counted=counted, measured={"peak_bytes": peak}, **changes)


def board(records: list[RunRecord], cost: str, **equal: float):
    (table,) = tables(records, equal=equal)
    return table.boards[cost], table.boards[cost].rows


FAST, SLOW = looks(0.1, 0.5, 0.7, 0.6), looks(0.2, 0.4, 0.8, 0.9)


def test_the_usual_time_is_the_most_that_every_contender_has_spent():
    found, entries = board([run("linformer", curve=FAST), run("softmax", curve=SLOW)], "time")
    assert found.budget == pytest.approx(3.0)
    assert entries["linformer"].score.mean == 0.7 and entries["linformer"].spent == pytest.approx(2.0)
    assert entries["softmax"].score.mean == 0.4


def test_controls_do_not_shorten_the_budget():
    found, entries = board([run("softmax", curve=SLOW), run("none", curve=looks(0.01, 0.1, 0.1))], "time")
    assert found.budget == pytest.approx(6.0)
    assert entries["none"].note == "spent less than the budget" and entries["none"].spent == pytest.approx(0.1)
    (table,) = tables([run("softmax", curve=SLOW), run("none", curve=looks(0.01, 0.1, 0.1))])
    assert "at equal time, none: spent less than the budget" in render([table], "terminal")


def test_times_are_not_compared_if_runs_shared_their_processor():
    def timed(name: str, *steps: float) -> list[RunRecord]:
        return [
            replace(run(name, seed, curve=FAST), measured={"step_seconds_median": step, "train_seconds": 30 * step})
            for seed, step in enumerate(steps, start=1)
        ]

    (steady,) = tables([*timed("softmax", 0.1, 0.14), *timed("linformer", 0.05, 0.05)])
    assert "time" in steady.boards and any("time" in row.fronts for row in steady.rows)
    (shared,) = tables([*timed("softmax", 0.1, 0.16), *timed("linformer", 0.05, 0.05)])
    assert "time" not in shared.boards and not any("time" in row.fronts for row in shared.rows)
    said = "the steps of softmax took 1.6 times as long with one seed as with another"
    assert said in render([shared], "github")
    assert "not compared" not in render([steady], "github")


def test_a_budget_before_the_first_look_is_over():
    records = [run("softmax", seed, curve=SLOW) for seed in (1, 2)] + [run("linformer", seed, curve=FAST) for seed in (1, 2)]
    found, entries = board(records, "time", time=1.5)
    assert (found.budget, found.rule) == (1.5, "as requested")
    assert entries["softmax"].over and entries["softmax"].score is None and "at 2.00 s" in entries["softmax"].note
    assert entries["linformer"].score.mean == 0.5 and entries["linformer"].score.count == 2
    (table,) = tables(records, equal={"time": 1.5})
    text = render([table], "terminal").split("at equal budgets")[1]
    assert "1.50 s" in text
    assert next(line for line in text.splitlines() if line.startswith("softmax")).split()[1] == "over"


def test_flops_are_of_training_forward_and_backward():
    records = [run("softmax", curve=SLOW, flops=100), run("linformer", curve=FAST, flops=50)]
    found, entries = board(records, "FLOPs")
    assert found.budget == 30 * 64 * 3 * 50, "steps, examples a step, three forward passes"
    assert entries["linformer"].score.mean == 0.7 and entries["softmax"].score.mean == 0.4
    (table,) = tables(records)
    assert table.rows[0].curve[0]["flops"] == 10 * 64 * 3 * 100 or table.rows[1].curve[0]["flops"] == 10 * 64 * 3 * 100
    assert "three forward passes" in render([table], "latex")


def test_counted_training_flops_are_taken_where_there_are_some():
    counted = {"parameters": 1, "flops_per_example": 100, "training_flops_per_example": 450}
    record = make_record(curve=SLOW, counted=counted)
    found, _ = board([record], "FLOPs")
    assert found.budget == 30 * 64 * 450
    assert "three forward passes" not in render(tables([record]), "terminal")


def test_less_is_better_also_within_a_budget():
    _, entries = board([run("softmax", curve=looks(0.1, 90.0, 40.0, 60.0), card=PERPLEXITY)], "time")
    assert entries["softmax"].score.mean == 40.0


def dial(k: int, valid: float, peak: float, seed: int = 1, **changes: Any):
    scores = {"test": valid - 0.05, "valid": valid, "train": 0.9}
    return run("linformer", seed, spec_options={"k": k}, scores=scores, peak=peak, **changes)


def test_equal_memory_takes_the_best_dial_on_validation_that_fits():
    softmax = run("softmax", peak=3 * 2**20)
    records = [dial(8, 0.5, 2**20), dial(16, 0.7, 2 * 2**20), dial(32, 0.9, 4 * 2**20), softmax]
    found, entries = board(records, "memory")
    assert (found.budget, found.score) == (3 * 2**20, "test") and "peak memory of any softmax row" in found.rule
    assert set(entries) == {"linformer k=16", "softmax"}
    assert entries["linformer k=16"].score.mean == pytest.approx(0.65), "the test score of the one chosen on validation"
    assert entries["linformer k=16"].note == "best on validation among the rows that fit (2 of 3)"
    _, entries = board(records, "memory", memory=1.5 * 2**20)
    assert entries["linformer k=8"].score.mean == pytest.approx(0.45) and entries["softmax"].over
    _, entries = board(records, "memory", memory=1000)
    assert entries["linformer k=8"].over, "the least of them stands for the attention"


def test_measured_budgets_of_auto_and_of_named_implementations_are_their_own_and_counted_ones_are_shared():
    records = [run("softmax", curve=SLOW, peak=5 * 2**20), run("softmax", curve=FAST, peak=2**20, spec_implementation="sdpa")]
    (table,) = tables(records)
    assert sorted(table.boards["time"].budgets.values()) == pytest.approx([3.0, 6.0])
    assert sorted(table.boards["memory"].budgets.values()) == [2**20, 5 * 2**20]
    assert table.boards["time"].budget is None and table.boards["FLOPs"].budget is not None
    assert not any(entry.over for entry in table.boards["memory"].rows.values())
    lines = [line.split() for line in render([table], "terminal").split("at equal budgets")[1].splitlines() if line.strip()]
    assert [line[:3] for line in lines if line[0].startswith("[")] == [["[auto]", "6.00", "s"], ["[sdpa]", "3.00", "s"]]


def test_rows_measured_on_several_machines_are_on_no_measured_board():
    there = {"cpu": "Another CPU", "threads": 2, "torch": "2.15.0"}
    records = [run("softmax", curve=SLOW), run("softmax", 2, curve=FAST, environment=there), run("linformer", curve=SLOW)]
    _, entries = board(records, "time")
    assert entries["softmax"].note == "measured on several machines" and entries["softmax"].score is None
    assert entries["linformer"].score is not None
    (table,) = tables(records)
    assert list(table.boards["memory"].rows) == ["linformer"]
    assert {label for label, within in table.boards["FLOPs"].rows.items() if within.score} == {"softmax", "linformer"}


def timed(name: str, seconds_a_step: float, *valid: float, seed: int = 1) -> RunRecord:
    """A run of ten seconds whose last step ends after them."""
    *before, last = looks(seconds_a_step, *valid)
    curve = (*before, {**last, "step": last["step"] + seed, "train_seconds": 10.0 + seconds_a_step})
    return run(name, seed, curve=curve, spec_budget=Budget(seconds=10.0, steps=10**6, schedule="constant"))


def test_scores_after_several_times_stand_in_one_table():
    records = [timed("softmax", 0.2, 0.4, 0.8, 0.7, 0.9), timed("linformer", 0.1, 0.5, 0.7, 0.6, 0.6)]
    (table,) = tables(records, at=(1.5, 5.0, 10.0))
    reached = [{label: within.score and within.score.mean for label, within in board.rows.items()} for board in table.at]
    assert reached == [
        {"linformer": 0.5, "softmax": None},
        {"linformer": 0.7, "softmax": 0.8},
        {"linformer": 0.7, "softmax": 0.9},  # a run's own time ends in the midst of its last step
    ]
    text = render([table], "terminal").split("best validation score by time of training")[1]
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith(("softmax", "linformer"))}
    assert lines["softmax"] == ["softmax", "over", "80.0", "90.0"] and lines["linformer"][1:] == ["50.0", "70.0", "70.0"]
    assert "after 1.50 s (%)" in text and "after 10.0 s (%)" in text
    assert table.boards["time"].budget == 10.0, "neither spends more than the other"


def test_pretraining_counts_as_time_and_flops():
    counted = {"parameters": 1, "flops_per_example": 100, "training_flops_per_example": 300, "pretraining_flops_per_example": 400}
    spent = {"train_seconds": 6.0, "pretrain_seconds": 2.0}
    budget = Budget(pretrain_steps=20)
    record = make_record(curve=SLOW, counted=counted, measured=spent, spec_budget=budget)
    (table,) = tables([record], at=(5.0,))
    assert table.boards["time"].budget == pytest.approx(8.0) and table.boards["FLOPs"].budget == 64 * (30 * 300 + 20 * 400)
    (entry,) = table.at[0].rows.values()
    assert entry.score and entry.score.mean == 0.4, "the second look is at 4 s of training, 6 s in all"
    (row,) = table.rows
    assert row.train_seconds == 8.0
    assert [point["seconds"] for point in row.curve] == pytest.approx([4.0, 6.0, 8.0])
    assert "400 steps of 64 examples, after 20 steps of pretraining on masked tokens; fp32" in render([table], "latex")
    uncounted = make_record(curve=SLOW, counted={"parameters": 1, "flops_per_example": 100}, spec_budget=budget)
    assert "FLOPs" not in tables([uncounted])[0].boards, "what pretraining took is not known"


def test_a_curve_over_seeds_has_the_steps_that_all_of_them_looked_after():
    (table,) = tables([timed("softmax", 0.2, 0.4, 0.8, 0.9, seed=seed) for seed in (1, 2)])
    assert [point["step"] for point in table.rows[0].curve] == [10, 20], "their last looks are after steps 31 and 32"
    (table,) = tables([timed("softmax", 0.2, 0.4, 0.8, 0.9)])
    assert [point["step"] for point in table.rows[0].curve] == [10, 20, 31]


def test_the_time_of_a_run_that_was_paused_is_no_cost():
    def timed(seed: int, seconds: float, step: float = 0.1) -> RunRecord:
        curve = ({"step": 100, "train_seconds": seconds, "train_loss": 1.0, "valid": 0.5},)
        return make_record("linear", "digits", seed, curve=curve, measured={"train_seconds": seconds, "step_seconds_median": step})

    (table,) = tables([timed(1, 11.0), timed(2, 300.0), timed(3, 12.0)])
    (row,) = table.rows
    assert row.train_seconds == 11.5 and row.train_seconds_range == (11.0, 12.0)
    assert "time" not in table.boards, "what seed 2 reached within a time is not known"
    (short,) = tables([timed(1, 9.0, step=0.01)])
    assert short.rows[0].train_seconds == 9.0, "a first step may take seconds"


def test_a_validation_score_that_is_not_finite_is_left_out():
    points = [
        {"step": step, "train_seconds": 1.0, "train_loss": 0.5, "valid": valid} for step, valid in ((10, math.nan), (20, 0.5))
    ]
    ((row,),) = [table.rows for table in tables([make_record(curve=tuple(points))])]
    assert [point["step"] for point in row.curve] == [20]
