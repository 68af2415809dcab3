"""Runs with one block for all layers or with a short convolution: counts in their records, and unchanged ids of other runs."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_helpers import Quiet

from attn_zoo.cli.compose import plan
from attn_zoo.leaderboard.reproduce import command
from attn_zoo.records import Budget, ModelSpec, RunRecord, RunSpec, Store
from attn_zoo.registry import task_card
from attn_zoo.runner import resolve_spec, run

RESULTS = Path(__file__).parents[2] / "results"
SMALL = {"length": 24, "train": 64, "valid": 16, "test": 16}


def spec(attention: str = "softmax", task: str = "listops", **model: Any) -> RunSpec:
    sizes = ModelSpec(**{"dim": 16, "depth": 3, "heads": 2, **model})
    budget = Budget(steps=2, batch_size=8, evaluate_every=2)
    options = SMALL if task == "listops" else {}
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


def test_images_run_with_shared_weights():
    found = run(spec(task="digits", shared_weights=True), Quiet())
    assert found.status == "done" and found.counted["attention_parameters"] == 4 * (16 * 16 + 16)


@pytest.mark.parametrize(
    ("attention", "task", "words"), [("reformer", "listops", "reformer"), ("softmax", "digits", "for tasks on images")]
)
def test_keys_that_cannot_be_reused_are_a_refused_run(attention, task, words):
    found = run(spec(attention, task, shared_weights=True, reuse_keys=True), Quiet())
    assert found.status == "refused" and words in str(found.reason)


def test_reuse_alone_is_refused_before_anything_is_run():
    with pytest.raises(ValueError, match=r"must go with model\.shared_weights=true"):
        ModelSpec(reuse_keys=True)


def test_ids_tell_the_options_apart_and_are_as_before_without_them():
    plain = spec()
    others = [replace(plain, model=replace(plain.model, shared_weights=True, reuse_keys=reuse)) for reuse in (False, True)]
    assert len({each.run_id("1") for each in (plain, *others)}) == 3
    for each in (plain, *others):
        assert RunSpec.from_dict(json.loads(json.dumps(each.to_dict()))) == each
    assert {"shared_weights", "reuse_keys", "short_convolution"}.isdisjoint(plain.to_dict()["model"])
    without = replace(plain, model=replace(plain.model, positions="none"))
    assert without.run_id("1") != plain.run_id("1") and "positions" not in plain.to_dict()["model"]
    assert RunSpec.from_dict(json.loads(json.dumps(without.to_dict()))) == without


def test_a_short_convolution_is_run_counted_and_told_apart():
    plain, convolved, wider = spec(), spec(short_convolution=4), spec(short_convolution=6)
    assert len({each.run_id("1") for each in (plain, convolved, wider)}) == 3
    assert RunSpec.from_dict(json.loads(json.dumps(convolved.to_dict()))) == convolved
    before, found = (run(each, Quiet()) for each in (plain, convolved))
    assert found.status == "done"
    for figure, more in (
        ("parameters", 3 * 5 * 16),
        ("attention_parameters", 3 * 5 * 16),
        ("flops_per_example", 3 * 2 * 5 * 25 * 16),
        ("training_flops_per_example", 3 * 6 * 5 * 25 * 16),
    ):
        assert found.counted[figure] - before.counted[figure] == more, figure
    assert found.counted["activation_bytes_per_example"] > before.counted["activation_bytes_per_example"]
    with pytest.raises(ValueError, match=r"model.short_convolution must be an integer >= 0; got -1"):
        ModelSpec(short_convolution=-1)


def test_an_output_gate_is_run_counted_and_told_apart():
    plain, *gated = (spec(output_gate=gate) for gate in ("none", "elementwise", "headwise"))
    assert len({each.run_id("1") for each in (plain, *gated)}) == 3 and "output_gate" not in plain.to_dict()["model"]
    before, counted = run(plain, Quiet()).counted, [run(each, Quiet()).counted for each in gated]
    for found, gates in zip(counted, (16, plain.model.heads), strict=True):
        assert found["parameters"] - before["parameters"] == 3 * (16 + 1) * gates
        assert found["flops_per_example"] - before["flops_per_example"] == 3 * 2 * 25 * 16 * gates
    with pytest.raises(ValueError, match=r"model.output_gate must be 'none' or 'elementwise' or 'headwise'; got 'both'"):
        ModelSpec(output_gate="both")


def test_shared_heads_of_keys_and_values_are_run_counted_and_told_apart():
    plain, shared = spec(task="flip_flop"), spec(task="flip_flop", key_value_heads=1)
    assert shared.run_id("1") != plain.run_id("1") and "key_value_heads" not in plain.to_dict()["model"]
    before, found = (run(each, Quiet()).counted for each in (plain, shared))
    assert found["parameters"] - before["parameters"] == -3 * 2 * (16 + 1) * 8
    assert 2 * found["state_bytes"] == before["state_bytes"] and found["mechanism_flops"] == before["mechanism_flops"]
    assert found["flops_per_example"] < before["flops_per_example"]
    with pytest.raises(ValueError, match=r"model.key_value_heads must divide model.heads.* got 3 for 4 heads"):
        ModelSpec(key_value_heads=3)
    refused = run(spec(task="digits", key_value_heads=1), Quiet())
    assert refused.status != "done" and "for tasks on images" in str(refused.reason)


def test_latents_are_run_counted_and_told_apart():
    plain, latent = spec(task="flip_flop"), spec(task="flip_flop", latent_dim=4)
    assert latent.run_id("1") != plain.run_id("1") and "latent_dim" not in plain.to_dict()["model"]
    before, found = (run(each, Quiet()).counted for each in (plain, latent))
    assert found["parameters"] - before["parameters"] == 3 * ((16 + 1) * 4 - 2 * 12 * 16)
    assert 8 * found["state_bytes"] == before["state_bytes"] and found["mechanism_flops"] == before["mechanism_flops"]
    with pytest.raises(ValueError, match=r"model.latent_dim must be an integer >= 0; got -1"):
        ModelSpec(latent_dim=-1)
    refused = run(spec(task="digits", latent_dim=4), Quiet())
    assert refused.status != "done" and "for tasks on images" in str(refused.reason)


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
