"""Runs of hybrids: resolved options, the record, and counts that are sums over layers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from run_helpers import Quiet

from attn_zoo.count import count_parameters
from attn_zoo.encoder import build_model
from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.show import find
from attn_zoo.records import Budget, ModelSpec, RunRecord, RunSpec
from attn_zoo.registry import build_task
from attn_zoo.runner import resolve_spec, run
from attn_zoo.runner.count import count_mechanisms, count_per_example, counted_implementation

SMALL = {"flip_flop": {"length": 16}}


def spec(attention: str, task: str = "digits", depth: int = 3, **changes: object) -> RunSpec:
    model, budget = ModelSpec(dim=16, depth=depth, heads=2), Budget(steps=2, batch_size=8, evaluate_every=2, warmup_steps=1)
    task_options = SMALL.get(task, {})
    return resolve_spec(
        RunSpec(attention=attention, task=task, task_options=task_options, model=model, budget=budget, device="cpu", **changes)  # type: ignore[arg-type]
    )


def test_a_spec_holds_every_option_of_every_mechanism_under_one_name():
    found = spec("linformer+linformer+softmax", options={"linformer.sharing": "layerwise"})
    assert found.attention == "2*linformer+softmax"
    alone = {name: spec(name, options=given).options for name, given in [("linformer", {"sharing": "layerwise"}), ("softmax", {})]}
    assert found.options == {f"{name}.{key}": value for name, options in alone.items() for key, value in options.items()}
    assert RunSpec.from_dict(found.to_dict()) == found and found.run_id("1") == spec(
        "2*linformer+softmax", options=found.options
    ).run_id("1")


@pytest.mark.parametrize(("attention", "task"), [("2*linformer+softmax", "digits"), ("linear+softmax", "flip_flop")])
def test_counts_are_sums_over_layers(attention, task):
    asked = spec(attention, task)
    task_spec = build_task(task, **asked.task_options).spec
    counted = count_per_example(asked, task_spec, "eager")
    first, last = attention.removeprefix("2*").split("+")
    ones = {name: count_mechanisms(spec(name, task, depth=1), task_spec) for name in (first, last)}
    for key in count_mechanisms(asked, task_spec):
        assert counted[key] == 2 * ones[first][key] + ones[last][key], key
    assert ("state_bytes" in counted) == (task == "flip_flop")
    sizes = {}
    for name in (first, last):
        for depth in (1, 2):
            with torch.device("meta"):
                built = build_model(task_spec, implementation="eager", **spec(name, task, depth=depth).network)
            sizes[name, depth] = count_parameters(built)
    with torch.device("meta"):
        model = build_model(task_spec, implementation=counted_implementation(asked), **asked.network)
    assert count_parameters(model) == sizes[first, 2] + sizes[last, 2] - sizes[last, 1]


@pytest.fixture(scope="module")
def record() -> RunRecord:
    return run(spec("linear+softmax", options={"softmax.dropout": 0.0}, depth=2), Quiet())


def test_a_run_is_recorded_with_the_cards_of_all_mechanisms(record):
    assert record.status == "done", record.reason
    card = record.attention_card
    assert card["name"] == record.spec.attention == "linear+softmax" and not card["control"]
    assert card["time"].startswith("linear: O(") and "; softmax: O(" in card["time"]
    first, _, last = (record.implementation or "").partition("+")
    assert (first, last) == ("tiled", "sdpa")
    assert RunRecord.from_dict(record.to_dict()) == record and math.isfinite(record.scores["test"])


def test_tables_show_a_hybrid_as_a_row_that_show_finds(record):
    (table,) = tables([record])
    (row,) = table.rows
    assert row.label == "linear+softmax"
    record = replace(record, source="one.json")
    for wanted in ("linear+softmax", "linear + softmax[dropout=0.0]", "linear+softmax@digits"):
        ((_, shown),) = find(wanted, [record])
        assert shown.runs == (record,)
    with pytest.raises(ValueError, match="there is no record of"):
        find("softmax+linear", [record])
