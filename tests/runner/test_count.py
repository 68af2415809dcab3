"""Counts in a record: training FLOPs and activations of a real step; and warnings about doubtful settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from model_formula import agrees
from run_helpers import Quiet

from attn_zoo.count import count_model
from attn_zoo.encoder import build_model
from attn_zoo.records import Budget, ModelSpec, RunRecord, RunSpec
from attn_zoo.registry import build_task, card
from attn_zoo.runner import resolve_spec, run
from attn_zoo.runner.count import _batch, count_mechanisms, count_per_example, counted_implementation


def spec(attention: str, task: str = "digits", **rest: object) -> RunSpec:
    rest = {"model": ModelSpec(dim=16, depth=2, heads=2), "budget": Budget(steps=2, batch_size=8, evaluate_every=2), **rest}
    return resolve_spec(RunSpec(attention=attention, task=task, seed=1, device="cpu", **rest))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attention", "task", "implementation"),
    [
        ("softmax", "digits", "eager"),
        ("softmax", "digits", "sdpa"),
        ("linformer", "retrieval", "sdpa"),
        ("longformer", "listops", "eager"),
        ("longformer", "listops", "tiled"),
        ("performer", "mqar", "eager"),
        ("linformer+softmax", "digits", "sdpa"),
        ("linear+softmax", "flip_flop", "eager"),
    ],
)
def test_counts_of_shapes_are_those_of_the_network_that_trains(attention, task, implementation):
    asked = spec(attention, task, implementation=implementation)
    task_spec = build_task(asked.task, **asked.task_options).spec
    counted = count_per_example(asked, task_spec, implementation)
    torch.manual_seed(0)
    model = build_model(task_spec, implementation=implementation, **asked.network)
    real = count_model(model, _batch(task_spec, asked.budget.batch_size))
    assert counted["activation_bytes_per_example"] == (real.activation_bytes or 0) // asked.budget.batch_size > 0
    form = build_model(task_spec, implementation=counted_implementation(asked), **asked.network)
    assert agrees(form, _batch(task_spec, 1))
    both = count_model(form, _batch(task_spec, 1))
    assert counted["flops_per_example"] == both.flops
    assert counted["training_flops_per_example"] == (both.flops or 0) + (both.backward_flops or 0)
    most = 3.5 if attention in ("longformer", "linear+softmax") else 3  # these recompute products in the backward pass
    assert 2.5 < counted["training_flops_per_example"] / counted["flops_per_example"] <= most


def test_activations_are_left_out_where_the_device_or_the_precision_decides():
    known = spec("softmax")
    task_spec = build_task("digits", **known.task_options).spec
    doubtful = [
        replace(known, precision="bf16"),
        replace(known, model=replace(known.model, dropout=0.1)),
        replace(known, options={"dropout": 0.1}),
    ]
    asked = [(other, "eager") for other in doubtful] + [(known, "xformers"), (replace(known, device="cuda"), "sdpa")]
    whole = count_per_example(known, task_spec, "eager")
    assert "activation_bytes_per_example" in whole
    for other, implementation in asked:
        counted = count_per_example(other, task_spec, implementation)
        assert "activation_bytes_per_example" not in counted
        assert counted["training_flops_per_example"] == whole["training_flops_per_example"]
    hybrid = spec("linear+softmax")
    dropped = replace(hybrid, options={**hybrid.options, "softmax.dropout": 0.1})
    assert "activation_bytes_per_example" not in count_per_example(dropped, task_spec, "eager")


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("needle", {"length": 16, "needles": 3, "longer": 4, "train": 20, "valid": 20, "test": 60}),
        (
            "mqar",
            {"length": 32, "pairs": 8, "fewest_pairs": 4, "most_pairs": 32, "train": 40, "valid": 40, "test": 40, "causal": True},
        ),
        ("state_words", {"length": 8, "test_length": 32, "train": 20, "valid": 20, "test": 20}),
    ],
)
def test_training_is_counted_at_the_length_of_training_inputs_and_a_pass_at_the_longest(task, options):
    built = build_task(task, **options)
    longest, trained = built.spec.length, built.examples("train").batch([0]).inputs.shape[-1]
    assert trained == built.spec.train_length == built.spec.in_training.length < longest
    asked = spec("softmax", task, task_options=options, model=ModelSpec(dim=16, depth=2, heads=2, positions="none"))
    counted = count_per_example(asked, built.spec, "eager")
    short = count_per_example(asked, built.spec.in_training, "eager")
    for name in ("training_flops_per_example", "activation_bytes_per_example"):
        assert counted[name] == short[name]
    for name in ("flops_per_example", "mechanism_flops", "state_bytes"):
        assert counted[name] > short[name]


def test_runs_that_differ_in_seed_or_learning_rate_are_counted_once(monkeypatch):
    known = spec("softmax", implementation="eager", model=ModelSpec(dim=24, depth=1, heads=2))
    digits = build_task("digits").spec
    made: list[object] = []

    def counted(*given: object) -> dict[str, int]:
        made.append(given)
        return {"flops_per_example": len(made)}

    monkeypatch.setattr("attn_zoo.runner.count._count", counted)
    first = count_per_example(known, digits, "eager")
    alike = [replace(known, seed=2), replace(known, budget=replace(known.budget, learning_rate=0.1, steps=9, evaluate_every=3))]
    assert [count_per_example(other, digits, "eager") for other in alike] == [first, first] and len(made) == 1
    first.clear()
    assert count_per_example(known, digits, "eager"), "what a caller does with its counts changes no other's"
    others = [
        replace(known, budget=replace(known.budget, batch_size=9)),
        replace(known, budget=replace(known.budget, pretrain_steps=5)),
        replace(known, model=replace(known.model, depth=2)),
        replace(known, options={"dropout": 0.1}),
        replace(known, precision="bf16"),
        replace(known, attention="uniform"),
    ]
    for number, other in enumerate(others, 2):
        assert count_per_example(other, digits, "eager") == {"flops_per_example": number}
    count_per_example(known, replace(digits, classes=11), "eager")
    count_per_example(known, digits, "sdpa")
    changed = replace(card("softmax"), cost=lambda geometry, options: card("softmax").cost(geometry, options))
    monkeypatch.setattr("attn_zoo.runner.count.card", lambda name: changed)
    count_per_example(known, digits, "eager")
    assert len(made) == len(others) + 4


def test_a_backward_pass_that_cannot_be_counted_costs_no_other_count(monkeypatch):
    def refused(*_: object) -> tuple[int, int]:
        raise NotImplementedError

    monkeypatch.setattr("attn_zoo.runner.count._flops", refused)
    known, digits = spec("softmax", model=ModelSpec(dim=20, depth=1, heads=2)), build_task("digits").spec
    counted = count_per_example(known, digits, "eager")
    assert counted.items() >= count_mechanisms(known, digits).items() and counted["flops_per_example"] > counted["mechanism_flops"]
    assert "training_flops_per_example" not in counted


def test_record_carries_counts_and_warnings():
    record = run(spec("performer", options={"features": 64}), Quiet())
    assert record.status == "done", record.reason
    assert record.counted["training_flops_per_example"] > 2 * record.counted["flops_per_example"]
    assert any("features=64 is at least the number of keys (17)" in words for words in record.warnings)
    assert any("times those of softmax here" in words for words in record.warnings)
    assert RunRecord.from_dict(record.to_dict()) == record
    assert run(spec("softmax"), Quiet()).warnings == ()


def test_mechanisms_are_counted_here_and_at_4096_tokens():
    recall = build_task("mqar", causal=True).spec
    counted = {name: count_mechanisms(spec(name, "mqar"), recall) for name in ("softmax", "linear", "none")}
    layers, products = 2, 2 * 2  # two matrix products, two FLOPs per multiplication
    assert counted["softmax"] == {
        "mechanism_flops": layers * products * 64 * 64 * 16,
        "state_bytes": layers * (2 * 64) * 16 * 4,
        "mechanism_flops_4096": layers * products * 4096 * 4096 * 16,
        "state_bytes_4096": 64 * layers * (2 * 64) * 16 * 4,
    }
    assert counted["linear"]["mechanism_flops_4096"] == 64 * counted["linear"]["mechanism_flops"]
    assert counted["none"]["mechanism_flops"] == counted["none"]["mechanism_flops_4096"] == 0
    encoder = build_task("digits").spec
    assert "state_bytes" not in count_mechanisms(spec("linformer"), encoder)
    mixed, *halves = [spec("linformer", options={"projected_lengths": lengths}) for lengths in ("8/4", "8/8", "4/4")]
    assert 2 * count_mechanisms(mixed, encoder)["mechanism_flops"] == sum(
        count_mechanisms(half, encoder)["mechanism_flops"] for half in halves
    )
    fixed = spec("linformer", options={"projected_lengths": "4/4"})
    assert count_mechanisms(fixed, encoder)["mechanism_flops_4096"] > count_mechanisms(fixed, encoder)["mechanism_flops"]
