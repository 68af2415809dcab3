"""Sentences of the README on the profile: they claim only what the records show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from make import make_record
from profile_tables import late_learners

from attn_zoo.leaderboard import Table, tables
from attn_zoo.records import Budget, RunRecord


def trained(name: str, test: float, steps: int, version: int = 1, **budget: Any) -> list[RunRecord]:
    """Return records of three seeds that were trained for a number of steps."""
    made = []
    for seed in (1, 2, 3):
        spec: dict[str, Any] = {"budget": Budget(steps=steps, **budget), "attention_version": version}
        curve = ({"step": steps, "train_seconds": 1.0, "train_loss": 0.5, "valid": test},)
        there = {"50": {"steps": 10}, "90": {"steps": 10}, "99": {"steps": 10}} if budget else {}
        record = make_record(name, seed=seed, test=test, curve=curve, stopped="criterion" if budget else None, reached=there)
        made.append(replace(record, spec=replace(record.spec, **spec)))
    return made


def until(name: str, steps: int, version: int = 1) -> list[Table]:
    return tables(trained(name, 1.0, steps, version, until="criterion", ceiling=1.0, schedule="constant"))


@pytest.mark.parametrize(("steps", "version", "found"), [(800, 1, ["`linear`"]), (300, 1, None), (800, 2, None)])
def test_a_mechanism_learns_late_only_if_the_same_version_was_trained_for_longer(steps, version, found):
    fixed = tables([*trained("softmax", 0.9, 400), *trained("linear", 0.2, 400), *trained("uniform", 0.3, 400)])
    assert late_learners(fixed, until("linear", steps, version)).get("digits (bidirectional)") == found
