"""The scores of softmax and Reformer are the same, to the bit, after hostile plugins, each of which is named."""

from __future__ import annotations

import warnings

import pytest
from hostile_plugins import HARMS, PLACES, UNDONE, write
from run_helpers import Quiet
from tiers import covering

from attn_zoo import registry
from attn_zoo.plugin_imports import PluginWarning
from attn_zoo.process_state import unusual
from attn_zoo.records import Budget, ModelSpec, RunRecord, RunSpec
from attn_zoo.registry import load_plugin
from attn_zoo.runner import resolve_spec, run

TASK = {"length": 24, "train": 64, "valid": 16, "test": 16}
SMALL = ["task=listops", *(f"task.{name}={value}" for name, value in TASK.items()), "budget.steps=3", "budget.evaluate_every=3"]
SMALL += ["budget.batch_size=16", "model.dim=16", "model.heads=2", "model.depth=1", "threads=1", "report=false"]


def done(attention: str) -> RunRecord:
    budget, model = Budget(steps=3, batch_size=16, evaluate_every=3), ModelSpec(dim=16, heads=2, depth=1)
    spec = RunSpec(attention, "listops", seed=1, task_options=TASK, model=model, budget=budget, device="cpu")
    return run(resolve_spec(spec), Quiet())


def facts(record: RunRecord) -> object:
    assert record.status == "done", record.reason
    curve = [(point["train_loss"], point["valid"]) for point in record.curve]
    return record.scores, curve, record.counted, record.environment["threads"], record.warnings


ROWS = ("softmax", "reformer")
"""Rows that must not change; reformer uses kernels and functions of PyTorch that softmax does not."""


@pytest.fixture(autouse=True)
def hostile_plugins_leave(monkeypatch):
    """Take the plugins of a test out of the registry after it."""
    registry.load_plugins()  # before the copy is made, since the built-in entries register once
    monkeypatch.setattr(registry, "_ATTENTIONS", dict(registry._ATTENTIONS))


@pytest.fixture(scope="module")
def alone() -> dict[str, object]:
    return {row: facts(done(row)) for row in ROWS}


@pytest.mark.parametrize(("kind", "place"), covering(HARMS, PLACES))
def test_rows_score_the_same_after_a_hostile_plugin_which_is_named(kind, place, alone, tmp_path):
    name, before = f"{kind}_{place}", unusual()  # settings that another test has left
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        load_plugin(write(tmp_path, name, HARMS[kind].code, place))
        hostile = done(name)
        said = " ".join(str(warning.message) for warning in told if warning.category is PluginWarning)
    for row in ROWS:
        after = done(row)
        assert facts(after) == alone[row], row
        assert after.environment.get("settings", {}) == before
    if HARMS[kind].named and (kind, place) not in UNDONE:
        assert HARMS[kind].named in said and name in said, said
        assert HARMS[kind].named in " ".join(hostile.warnings), hostile.warnings
