"""Runs of every kind of problem: trained, tested, recorded and read again."""

from __future__ import annotations

import json
import math

import pytest
from mutants.sound_tasks import Pictures, Readings, ReadingsByPosition, SeveralAtOnce, Sound, card_of
from run_helpers import Quiet

from attn_zoo import registry
from attn_zoo.records import Budget, ModelSpec, RunRecord, RunSpec
from attn_zoo.runner import resolve_spec, run


def recorded(kind, monkeypatch, **changes) -> RunRecord:
    card = card_of(kind, **changes)
    monkeypatch.setitem(registry._TASKS, card.name, card)
    budget = Budget(steps=3, batch_size=8, evaluate_every=3, warmup_steps=1)
    spec = RunSpec(attention="softmax", task=card.name, model=ModelSpec(dim=16, depth=1, heads=2), budget=budget, device="cpu")
    return run(resolve_spec(spec), Quiet())


@pytest.mark.parametrize("kind", [Sound, Pictures, SeveralAtOnce, Readings, ReadingsByPosition])
def test_a_run_is_recorded_with_its_kind_of_problem(kind, monkeypatch):
    record = recorded(kind, monkeypatch)
    assert record.status == "done", record.reason
    assert {"train", "valid", "test"} <= set(record.scores) and record.chance is not None
    assert all(math.isfinite(score) for score in record.scores.values())
    problem = kind(None).spec.problem
    assert record.task_card.get("problem", "classification") == problem
    assert ("problem" in record.task_card) == (problem != "classification"), "records of classification are as they were"
    assert record.counted["training_flops_per_example"] > record.counted["flops_per_example"] > 0
    again = RunRecord.from_dict(json.loads(json.dumps(record.to_dict())))
    assert again == record and again.run_id == record.run_id


def test_a_metric_of_another_problem_fails_before_training(monkeypatch):
    record = recorded(Readings, monkeypatch, metric="accuracy")
    assert record.status == "failed" and not record.curve
    assert (
        record.reason is not None
        and "accuracy cannot be used for this task, because its problem is regression. Use r2 or mse" in record.reason
    )
