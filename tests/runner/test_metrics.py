"""Metrics compared with torchmetrics, batch by batch."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from attn_zoo.contract import METRICS, PROBLEMS, Frames, TaskSpec, Tokens, UnknownNameError
from attn_zoo.registry import build_task
from attn_zoo.runner import metrics
from attn_zoo.runner.state import DivergedError

PEERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "accuracy": ("torchmetrics.classification", "MulticlassAccuracy", {"num_classes": 2, "average": "micro"}),
    "f1": ("torchmetrics.classification", "BinaryF1Score", {}),
    "perplexity": ("torchmetrics.text", "Perplexity", {}),
    "f1_micro": ("torchmetrics.classification", "MultilabelF1Score", {"num_labels": 2, "average": "micro"}),
    "f1_macro": ("torchmetrics.classification", "MultilabelF1Score", {"num_labels": 2, "average": "macro"}),
    "r2": ("torchmetrics", "R2Score", {}),
    "mse": ("torchmetrics", "MeanSquaredError", {}),
}


def some_answers(name: str, seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random outputs, and labels for the metric's kind of problem."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, 2, generator=generator)
    if name in METRICS["classification"]:
        return scores, torch.randint(2, (count,), generator=generator)
    if name in METRICS["multi_label"]:
        return scores, torch.randint(2, (count, 2), generator=generator).float()
    return scores, scores + torch.randn(count, 2, generator=generator) + 3


def test_every_metric_is_of_one_kind_of_problem():
    assert sorted(name for names in METRICS.values() for name in names) == sorted(metrics.MEASURES)
    assert set(METRICS) == set(PROBLEMS)


@pytest.mark.extras
@pytest.mark.parametrize("name", list(metrics.MEASURES))
def test_a_metric_is_that_of_torchmetrics(name):
    pytest.importorskip("torchmetrics", reason="torchmetrics is not installed (extra: dev)")
    module, kind, options = PEERS[name]
    peer, ours = getattr(importlib.import_module(module), kind)(**options), metrics.measure_named(name).make(2)
    for seed, count in enumerate((7, 1, 300)):
        scores, labels = some_answers(name, seed, count)
        ours.update(scores, labels)
        given = {"f1": scores.argmax(dim=-1), "perplexity": scores[None]}.get(name, scores)
        if name in METRICS["multi_label"]:
            given, labels = scores.sigmoid(), labels.long()
        peer.update(given, labels[None] if name == "perplexity" else labels)
    expected = peer.compute().item()
    exact = name in ("accuracy", "f1")
    assert ours.compute() == (expected if exact else pytest.approx(expected, rel=1e-5))


def test_outputs_that_are_not_finite_have_no_score():
    task = build_task("mqar", train=20, valid=20, test=20)
    model = nn.Module()
    model.forward = lambda tokens, valid, asked: torch.full((int(asked.sum()), task.spec.classes), math.nan)
    with pytest.raises(DivergedError, match="NaN"):
        metrics.evaluate(model, task.examples("valid"), task.spec, metrics.measure_of("accuracy", task.spec), Accelerator(cpu=True))


def test_an_unlikely_label_has_a_finite_perplexity():
    meter = metrics.measure_named("perplexity").make(2)
    meter.update(torch.tensor([[120.0, 0.0], [0.0, 0.0]]), torch.tensor([1, 0]))
    assert meter.compute() == pytest.approx(math.exp((120 + math.log(2)) / 2), rel=1e-5)


def test_no_answer_has_no_figure():
    with pytest.raises(ValueError, match="must get at least one prediction"):
        metrics.measure_named("accuracy").make(2).compute()


def test_f1_is_zero_where_nobody_says_one():
    meter = metrics.measure_named("f1").make(2)
    meter.update(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    assert meter.compute() == 0.0


def test_an_f1_without_members_is_zero_and_a_perfect_one_is_one():
    for name in METRICS["multi_label"]:
        nobody, right = (metrics.measure_named(name).make(2) for _ in range(2))
        nobody.update(-torch.ones(3, 2), torch.zeros(3, 2))
        right.update(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), torch.eye(2))
        assert (nobody.compute(), right.compute()) == (0.0, 1.0)
    micro, macro = (metrics.measure_named(name).make(2) for name in METRICS["multi_label"])
    for meter in (micro, macro):
        meter.update(torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.0, -1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]]))
    assert micro.compute() == pytest.approx(6 / 8) and macro.compute() == pytest.approx(1 / 2)


def test_r2_is_zero_for_the_mean_below_it_for_worse_and_one_for_the_labels():
    labels = torch.tensor([[1.0], [2.0], [6.0]])
    for outputs, expected in ((labels, 1.0), (torch.full((3, 1), 3.0), 0.0), (torch.full((3, 1), 6.0), -27 / 14)):
        meter = metrics.measure_named("r2").make(1)
        meter.update(outputs, labels)
        assert meter.compute() == pytest.approx(expected)
    constant = metrics.measure_named("r2").make(1)
    constant.update(labels, torch.ones(3, 1))
    assert constant.compute() == 0.0, "of what is always the same nothing can be explained"
    for tenths in range(1, 10):
        rounded = metrics.measure_named("r2").make(1)
        rounded.update(torch.zeros(100, 1), torch.full((100, 1), tenths / 10))
        assert rounded.compute() == 0.0


def test_chance_of_several_classes_at_once_is_the_best_set_and_of_numbers_the_mean():
    several = TaskSpec(Tokens(2), 1, 3, problem="multi_label")
    train = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    test = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    micro = metrics.constant_score(train, test, several, metrics.measure_named("f1_micro"))
    assert micro == pytest.approx(2 * 2 / (4 + 3)), "the first two classes, which have an F1 of 0.857 in training"
    macro = metrics.constant_score(train, test, several, metrics.measure_named("f1_macro"))
    assert macro == pytest.approx(2 / 3), "all three: a class that is left out counts as 0"
    one = TaskSpec(Frames(1), 2, 1, labels="position", problem="regression")
    train, test = torch.tensor([[[1.0], [torch.nan]], [[3.0], [4.0]]]), torch.tensor([[[0.0], [torch.nan]], [[2.0], [1.0]]])
    mean = torch.tensor(8 / 3)
    errors = (torch.tensor([0.0, 2.0, 1.0]) - mean).square()
    assert metrics.constant_score(train, test, one, metrics.measure_named("mse")) == pytest.approx(float(errors.mean()))
    assert metrics.constant_score(train, test, one, metrics.measure_named("r2")) == pytest.approx(1 - float(errors.sum()) / 2)


def test_a_metric_of_another_kind_of_problem_is_refused_by_name():
    numbers = TaskSpec(Frames(2), 4, 1, problem="regression")
    assert metrics.measure_of("mse", numbers) is metrics.MEASURES["mse"]
    with pytest.raises(ValueError, match=r"accuracy cannot be used for this task, .* problem is regression. Use r2 or mse"):
        metrics.measure_of("accuracy", numbers)
    with pytest.raises(ValueError, match="Use f1_micro or f1_macro"):
        metrics.measure_of("f1", TaskSpec(Tokens(2), 4, 2, problem="multi_label"))
    with pytest.raises(UnknownNameError, match="did you mean 'mse'"):
        metrics.measure_of("msee", numbers)
