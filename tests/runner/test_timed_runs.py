"""Runs with a time budget: where they stop and how the learning rate falls, also when interrupted."""

from __future__ import annotations

import math
from typing import Any

import pytest
from run_helpers import CutShort, Quiet, StepClock

from attn_zoo.records import Budget, ModelSpec, RunRecord, RunSpec
from attn_zoo.runner import resolve_spec, run
from attn_zoo.runner import train as loop
from attn_zoo.runner.checkpoint import Checkpoint

LISTOPS = {"length": 24, "train": 64, "valid": 20, "test": 20}


def spec(**budget: Any) -> RunSpec:
    chosen = Budget(**{"steps": 1000, "batch_size": 8, "evaluate_every": 4, "warmup_steps": 0, "seconds": 5.5, **budget})
    model = ModelSpec(dim=16, heads=2)
    return resolve_spec(RunSpec("softmax", "listops", task_options=LISTOPS, model=model, budget=chosen, device="cpu"))


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(loop, "time", StepClock(1.0))


def steps(record: RunRecord) -> list[float]:
    assert record.status == "done", record.reason
    return [point["step"] for point in record.curve]


def test_training_ends_as_done_after_the_step_in_which_its_time_is_over():
    """Each step takes one second; the second step is profiled and not timed."""
    record = run(spec(), Quiet())
    assert steps(record) == [4, 7], "the last look is at the end"
    assert [point["train_seconds"] for point in record.curve] == [3.0, 6.0]
    assert record.measured["train_seconds"] == 6.0
    assert record.scores["valid"] == max(point["valid"] for point in record.curve)


def test_steps_are_the_most_that_are_done_and_max_seconds_stays_a_failure():
    assert steps(run(spec(steps=5), Quiet())) == [4, 5]
    late = run(spec(seconds=0.0, max_seconds=5.5), Quiet())
    assert (late.status, late.reason) == ("timed_out", "training reached max_seconds=5.5 at 7 of 1000 steps")


def rates(monkeypatch, asked: RunSpec) -> list[float]:
    """Return the learning rate at each step as a share of the budget's learning rate."""
    seen, step = [], loop._step

    def watched(training, *rest):
        seen.append(training.optimizer.param_groups[0]["lr"] / asked.budget.learning_rate)
        step(training, *rest)

    monkeypatch.setattr(loop, "_step", watched)
    run(asked, Quiet())
    return seen


def test_a_cosine_falls_along_the_time_or_the_steps_whichever_is_nearer_its_end(monkeypatch):
    def fallen(share: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * share))

    by_time = [fallen(seconds / 5.5) for seconds in (0, 0, 1, 1, 2, 3, 4)]  # measured when the previous step has ended
    assert rates(monkeypatch, spec()) == pytest.approx(by_time, abs=1e-3)
    assert rates(monkeypatch, spec(steps=4)) == pytest.approx([fallen(share) for share in (0, 1 / 4, 1 / 2, 3 / 4)])
    by_steps = [fallen(step / 1000) for step in range(7)]
    assert rates(monkeypatch, spec(seconds=0.0, max_seconds=5.5)) == pytest.approx(by_steps), "a limit is no plan"


def test_a_constant_rate_stays_after_the_warm_up(monkeypatch):
    assert rates(monkeypatch, spec(warmup_steps=3, schedule="constant")) == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1, 1])
    untimed = spec(seconds=0.0, steps=5, warmup_steps=2, schedule="constant")
    assert rates(monkeypatch, untimed) == pytest.approx([0.5, 1, 1, 1, 1])


@pytest.mark.parametrize("after", [5, 7])
def test_a_timed_run_cut_short_ends_where_the_whole_would(after, tmp_path, monkeypatch):
    """Interrupted after step 7, the run has used up its time, and only the last evaluation is left."""
    whole = run(spec(), Quiet())
    monkeypatch.setattr(loop, "time", StepClock(1.0))
    with pytest.raises(KeyboardInterrupt):
        run(spec(), CutShort(after), None, Checkpoint(tmp_path, "cut", every=1, minutes=0))
    again = Checkpoint(tmp_path, "cut", every=0, minutes=0)
    assert str(again.open()).startswith(f"goes on after step {after}")
    record = run(spec(), Quiet(), None, again)
    assert record.curve == whole.curve and record.scores == whole.scores
    assert record.measured["train_seconds"] == 6.0
