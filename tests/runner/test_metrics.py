"""Metrics against torchmetrics, answer by answer and over processes."""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch

from attn_zoo.runner import metrics

PEERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "accuracy": ("torchmetrics.classification", "MulticlassAccuracy", {"num_classes": 2, "average": "micro"}),
    "f1": ("torchmetrics.classification", "BinaryF1Score", {}),
    "perplexity": ("torchmetrics.text", "Perplexity", {}),
}


def some_answers(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 2, generator=generator), torch.randint(2, (count,), generator=generator)


@pytest.mark.parametrize("name", list(metrics.MEASURES))
def test_a_metric_is_that_of_torchmetrics(name):
    pytest.importorskip("torchmetrics", reason="torchmetrics is not installed (extra: dev)")
    module, kind, options = PEERS[name]
    peer, ours = getattr(importlib.import_module(module), kind)(**options), metrics.measure_named(name).make(2)
    for seed, count in enumerate((7, 1, 300)):
        scores, labels = some_answers(seed, count)
        ours.update(scores, labels)
        given = {"accuracy": scores, "f1": scores.argmax(dim=-1), "perplexity": scores[None]}[name]
        peer.update(given, labels[None] if name == "perplexity" else labels)
    expected = peer.compute().item()
    assert ours.compute() == (pytest.approx(expected, rel=1e-6) if name == "perplexity" else expected)


class Three:
    """Three processes, of which the second has no answers."""

    def __init__(self, others: list[list[float]]) -> None:
        self.others = others

    def gather(self, own: list[float]) -> list[list[float]]:
        return [own, [], *self.others]


@pytest.mark.parametrize("name", list(metrics.MEASURES))
def test_counts_of_processes_are_added(name):
    whole, mine, theirs = (metrics.measure_named(name).make(2) for _ in range(3))
    scores, labels = some_answers(0, 9)
    whole.update(scores, labels)
    mine.update(scores[:4], labels[:4])
    theirs.update(scores[4:], labels[4:])
    processes: Any = Three([theirs._sums])
    assert mine.compute_together(processes) == pytest.approx(whole.compute(), rel=1e-6)


def test_an_unlikely_label_has_a_finite_perplexity():
    meter = metrics.measure_named("perplexity").make(2)
    meter.update(torch.tensor([[120.0, 0.0], [0.0, 0.0]]), torch.tensor([1, 0]))
    assert meter.compute() == pytest.approx(math.exp((120 + math.log(2)) / 2), rel=1e-5)


def test_no_answer_has_no_figure():
    with pytest.raises(ValueError, match="needs an answer"):
        metrics.measure_named("accuracy").make(2).compute()


def test_f1_is_zero_where_nobody_says_one():
    meter = metrics.measure_named("f1").make(2)
    meter.update(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    assert meter.compute() == 0.0
