"""Options of the network that were added later: counts in their records, and unchanged ids of other runs."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from run_helpers import Quiet

from attn_zoo.cli.run import plan
from attn_zoo.leaderboard.reproduce import command
from attn_zoo.records import Budget, ModelSpec, RunRecord, RunSpec, Store
from attn_zoo.registry import task_card
from attn_zoo.runner import resolve_spec, run

RESULTS = Path(__file__).parents[2] / "results"
SMALL = {"length": 24, "train": 64, "valid": 16, "test": 16}


def spec(attention: str = "softmax", task: str = "listops", **model: Any) -> RunSpec:
    sizes = ModelSpec(**{"dim": 16, "depth": 3, "heads": 2, **model})
    budget = Budget(steps=2, batch_size=8, evaluate_every=2)
    options = {"listops": SMALL, "flip_flop": {"train": 40, "valid": 20, "test": 30}}.get(task, {})
    return resolve_spec(RunSpec(attention=attention, task=task, task_options=options, model=sizes, budget=budget, device="cpu"))


def test_records_count_a_shared_block_once_and_its_work_each_time():
    asked = (spec(), spec(shared_weights=True), spec(shared_weights=True, reuse_keys=True))
    apart, shared, reused = (run(each, Quiet()) for each in asked)
    assert [record.status for record in (apart, shared, reused)] == ["done"] * 3
    assert shared.counted["attention_parameters"] * 3 == apart.counted["attention_parameters"]
    assert shared.counted["parameters"] == reused.counted["parameters"] < apart.counted["parameters"]
    for figure in ("flops_per_example", "training_flops_per_example"):
        assert shared.counted[figure] == apart.counted[figure] > reused.counted[figure]
    projections = 2 * 2 * 2 * 25 * 16 * 16  # of keys and values, in the block's second and third application
    assert shared.counted["flops_per_example"] - reused.counted["flops_per_example"] == projections
    saved = shared.counted["training_flops_per_example"] - reused.counted["training_flops_per_example"]
    assert saved == 3 * projections
    assert RunRecord.from_dict(json.loads(json.dumps(reused.to_dict()))) == reused


def test_the_state_of_reused_keys_is_counted_once():
    asked: tuple[dict[str, Any], ...] = ({}, {"shared_weights": True}, {"shared_weights": True, "reuse_keys": True})
    apart, shared, reused = (run(spec(task="flip_flop", **given), Quiet()).counted for given in asked)
    for figure in ("state_bytes", "state_bytes_4096"):
        assert apart[figure] == shared[figure] == 3 * reused[figure]
    assert apart["mechanism_flops"] == shared["mechanism_flops"] == reused["mechanism_flops"]


def test_images_run_with_shared_weights():
    found = run(spec(task="digits", shared_weights=True), Quiet())
    assert found.status == "done" and found.counted["attention_parameters"] == 4 * (16 * 16 + 16)


@pytest.mark.parametrize(
    ("attention", "task", "words"), [("reformer", "listops", "reformer"), ("softmax", "digits", "for tasks on images")]
)
def test_keys_that_cannot_be_reused_are_a_refused_run(attention, task, words):
    found = run(spec(attention, task, shared_weights=True, reuse_keys=True), Quiet())
    assert found.status == "refused" and words in str(found.reason)


def test_ids_tell_the_options_apart_and_are_as_before_without_them():
    plain, shared = spec(), {"shared_weights": True}
    options: list[dict[str, Any]] = [shared, {**shared, "reuse_keys": True}, {"short_convolution": 4}, {"short_convolution": 6}]
    options += [{"output_gate": gate} for gate in ("elementwise", "headwise")]
    options += [{"key_value_heads": 1}, {"latent_dim": 4}, {"positions": "none"}]
    constant = {"schedule": "constant"}
    budgets: list[dict[str, Any]] = [{"seconds": 60.0}, constant, {"pretrain_steps": 7}, {**constant, "until": "criterion"}]
    others = [replace(plain, model=replace(plain.model, **given)) for given in options]
    others += [replace(plain, budget=replace(plain.budget, **given)) for given in budgets]
    assert len({each.run_id("1") for each in (plain, *others)}) == 1 + len(others)
    for each in (plain, *others):
        assert RunSpec.from_dict(json.loads(json.dumps(each.to_dict()))) == each
    assert {key for given in options for key in given}.isdisjoint(plain.to_dict()["model"])
    assert {"seconds", "schedule", "pretrain_steps", "until", "ceiling"}.isdisjoint(plain.to_dict()["budget"])


def test_a_short_convolution_is_run_and_counted():
    before, found = (run(each, Quiet()) for each in (spec(), spec(short_convolution=4)))
    assert found.status == "done"
    for figure, more in (
        ("parameters", 3 * 5 * 16),
        ("attention_parameters", 3 * 5 * 16),
        ("flops_per_example", 3 * 2 * 5 * 25 * 16),
        ("training_flops_per_example", 3 * 6 * 5 * 25 * 16),
    ):
        assert found.counted[figure] - before.counted[figure] == more, figure
    assert found.counted["activation_bytes_per_example"] > before.counted["activation_bytes_per_example"]


@pytest.mark.parametrize("gate", ["elementwise", "headwise"])
def test_an_output_gate_is_run_and_counted(gate):
    plain = spec(output_gate="none")
    before, found = (run(each, Quiet()).counted for each in (plain, spec(output_gate=gate)))
    gates = {"elementwise": 16, "headwise": plain.model.heads}[gate]
    assert found["parameters"] - before["parameters"] == 3 * (16 + 1) * gates
    assert found["flops_per_example"] - before["flops_per_example"] == 3 * 2 * 25 * 16 * gates


@pytest.mark.parametrize(
    ("key", "size", "parameters", "state"),
    [("key_value_heads", 1, -3 * 2 * (16 + 1) * 8, 2), ("latent_dim", 4, 3 * ((16 + 1) * 4 - 2 * 12 * 16), 8)],
)
def test_smaller_keys_and_values_are_run_and_counted(key, size, parameters, state):
    before, found = (run(each, Quiet()).counted for each in (spec(task="flip_flop"), spec(task="flip_flop", **{key: size})))
    assert found["parameters"] - before["parameters"] == parameters
    assert state * found["state_bytes"] == before["state_bytes"] and found["mechanism_flops"] == before["mechanism_flops"]
    assert (found["flops_per_example"] < before["flops_per_example"]) or key == "latent_dim"
    refused = run(spec(task="digits", **{key: size}), Quiet())
    assert refused.status != "done" and "for tasks on images" in str(refused.reason)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"pretrain_steps": -1}, r"budget\.pretrain_steps must be an integer >= 0; got -1"),
        ({"until": "criterion"}, r"until=criterion must go with budget\.schedule=constant"),
        ({"ceiling": 0.5}, "ceiling must be left out unless"),
        ({"seconds": -1.0}, "budget.seconds must be at least 0; got -1"),
        ({"seconds": math.nan}, "budget.seconds must be a finite number; got nan"),
        ({"schedule": "linear"}, "budget.schedule must be 'cosine' or 'constant'; got 'linear'"),
        ({"seconds": 60.0, "max_seconds": 90.0}, r"cannot be given together; got 60 and 90"),
        ({"reuse_keys": True}, r"must go with model\.shared_weights=true"),
        ({"short_convolution": -1}, r"model.short_convolution must be an integer >= 0; got -1"),
        ({"output_gate": "both"}, r"model.output_gate must be 'none' or 'elementwise' or 'headwise'; got 'both'"),
        ({"key_value_heads": 3}, r"model.key_value_heads must divide model.heads.* got 3 for 4 heads"),
        ({"latent_dim": -1}, r"model.latent_dim must be an integer >= 0; got -1"),
    ],
)
def test_wrong_sizes_are_refused_before_anything_is_run(wrong, words):
    kind = ModelSpec if wrong.keys() <= {field.name for field in fields(ModelSpec)} else Budget
    with pytest.raises(ValueError, match=words):
        kind(**wrong)


@pytest.mark.process
def test_committed_records_keep_their_ids_and_one_of_each_hybrid_is_composed_again():
    records, _ = Store(RESULTS).load()
    assert len(records) > 90
    assert [r.source for r in records if r.spec.run_id(str(r.task_card["version"]), r.protocol) != r.run_id] == []
    for record in {r.spec.attention: r for r in records if "+" in r.spec.attention}.values():
        planned = plan(shlex.split(command(record.spec))[2:])
        assert [s.run_id(task_card(s.task).version, record.protocol) for s in planned.specs] == [record.run_id], record.source


def test_the_command_line_composes_all_options():
    words = ["task=listops", "model.depth=6", "model.shared_weights=true", "model.reuse_keys=true", "model.short_convolution=4"]
    planned = plan(words)
    (composed,) = planned.specs
    assert composed.model.shared_weights and composed.model.reuse_keys and composed.model.depth == 6
    assert composed.model.short_convolution == 4
    assert plan(shlex.split(command(composed))[2:]) == planned
