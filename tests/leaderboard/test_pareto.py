"""Fronts and domination: what may be weighed against what, and that noise decides nothing."""

from __future__ import annotations

from typing import Any

import pytest
from make import make_record

from attn_zoo.leaderboard import Row, tables
from attn_zoo.records import RunRecord


def runs(
    name: str, tests=(0.8, 0.81, 0.79), *, parameters=1000, flops=1000, seconds=10.0, peak=1000, **changes: Any
) -> list[RunRecord]:
    return [
        make_record(
            name,
            seed=seed,
            test=test,
            counted={"parameters": parameters, "attention_parameters": 1, "flops_per_example": flops},
            measured={"examples_per_second": 100.0, "peak_bytes": peak, "train_seconds": seconds + seed / 10},
            **changes,
        )
        for seed, test in enumerate(tests, start=1)
    ]


def rows(*records: list[RunRecord]) -> dict[str, Row]:
    (table,) = tables([record for group in records for record in group])
    return {row.label: row for row in table.rows}


def test_a_front_holds_what_nothing_beats_for_as_little():
    found = rows(
        runs("softmax", (0.9, 0.9, 0.9), flops=4000, seconds=40),
        runs("linformer", (0.8, 0.8, 0.8), flops=2000, seconds=50),
        runs("performer", (0.7, 0.7, 0.7), flops=3000, seconds=20),
    )
    assert {label for label, row in found.items() if "FLOPs" in row.fronts} == {"softmax", "linformer"}
    assert {label for label, row in found.items() if "time" in row.fronts} == {"softmax", "performer"}
    assert {label for label, row in found.items() if "parameters" in row.fronts} == {"softmax"}


def test_a_row_is_dominated_by_rows_no_worse_in_everything_and_better_in_one():
    found = rows(runs("softmax", (0.9, 0.9, 0.9)), runs("linformer", flops=1001), runs("performer", flops=999))
    assert found["linformer"].dominated_by == ("softmax", "performer")
    assert found["performer"].dominated_by == ()
    assert found["softmax"].dominated_by == ()


def test_a_control_can_dominate():
    found = rows(runs("softmax", (0.4, 0.4, 0.4)), runs("uniform", (0.5, 0.5, 0.5), flops=500))
    assert found["softmax"].dominated_by == ("uniform",)


@pytest.mark.parametrize("change", [{"flops": 999}, {"parameters": 999}, {"peak": 999}, {"seconds": 5.0}])
def test_at_equal_scores_less_of_any_cost_dominates(change):
    found = rows(runs("softmax"), runs("linformer", **change))
    assert found["softmax"].dominated_by == ("linformer",)


def test_neither_a_lucky_score_nor_a_lucky_clock_dominates():
    assert rows(runs("softmax", (0.80, 0.84, 0.79)), runs("linformer"))["linformer"].dominated_by == ()
    assert rows(runs("softmax", seconds=9.9), runs("linformer"))["linformer"].dominated_by == ()
    clear = rows(runs("softmax", (0.95, 0.96, 0.94)), runs("linformer", (0.5, 0.51, 0.49)))
    assert clear["linformer"].dominated_by == ("softmax",)


def test_measured_costs_of_auto_and_of_named_implementations_are_never_compared():
    found = rows(
        runs("linformer", (0.7, 0.71, 0.69), flops=900, seconds=90, peak=9000),
        runs("softmax", (0.7, 0.71, 0.69), flops=1000, seconds=10, peak=1000, spec_implementation="sdpa"),
    )
    eager, kernel = found["linformer"], found["softmax (sdpa)"]
    assert eager.block.measured_as == "auto" and kernel.block.measured_as == "sdpa"
    assert {"time", "memory"} <= set(eager.fronts) and {"time", "memory"} <= set(kernel.fronts)
    assert "FLOPs" not in kernel.fronts
    assert kernel.dominated_by == ("linformer",), "by what is counted"


def test_nor_are_those_of_several_machines():
    there = {"cpu": "Another CPU", "threads": 2, "torch": "2.15.0"}
    found = rows(runs("softmax", seconds=90, peak=9000), runs("linformer", environment=there))
    assert found["softmax"].dominated_by == ()
    mixed = [*runs("performer", (0.8, 0.8)), *runs("performer", (0.8,), environment=there, spec_seed=3)]
    found = rows(runs("softmax"), mixed, [*runs("reformer", (0.8, 0.8)), *runs("reformer", (0.8,), environment=there, spec_seed=3)])
    assert found["performer"].block == found["reformer"].block
    assert {"time", "memory"}.isdisjoint(cost for row in found.values() for cost in row.dominated_by)
    assert {"time", "memory"}.isdisjoint(found["performer"].fronts), "compared with nobody"


def test_a_row_of_which_a_seed_failed_dominates_nothing_and_is_on_no_front():
    failed = [*runs("linformer", (0.99, 0.99), flops=1), make_record("linformer", seed=3, status="diverged")]
    found = rows(runs("softmax"), failed)
    assert found["softmax"].dominated_by == () and found["linformer"].fronts == ()


def test_what_was_not_measured_is_no_cost():
    bare = [make_record("linformer", seed=seed, measured={}, counted={}) for seed in (1, 2, 3)]
    found = rows(runs("softmax"), bare)
    assert found["linformer"].fronts == () and found["linformer"].dominated_by == ()
