"""How good answers are, through torchmetrics: one figure a split, over every example of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attn_zoo.contract import UNASKED, Batch, Examples, TaskSpec, UnknownNameError
from attn_zoo.runner.interrupts import StoppedError, asked
from attn_zoo.runner.processes import Processes

if TYPE_CHECKING:
    from torchmetrics import Metric

EVALUATION_TOKENS = 2**16
"""Positions of a batch that is looked at without training; at most 256 examples."""


_ALONE: dict[str, Any] = {"sync_on_compute": False}
"""Processes meet when a meter is told to, and not whenever one of them computes."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric by its name on a task's card."""

    name: str
    higher_is_better: bool
    make: Callable[[int], Meter]
    """From the number of classes."""

    def better(self, score: float, than: float | None) -> bool:
        """Whether a score beats another; every score beats none."""
        if than is None:
            return True
        return score > than if self.higher_is_better else score < than


def _accuracy(classes: int) -> Meter:
    from torchmetrics.classification import MulticlassAccuracy

    return Meter(
        MulticlassAccuracy(classes, average="micro", validate_args=False, **_ALONE),
        lambda scores, labels: (scores, labels),
    )


def _f1(classes: int) -> Meter:
    from torchmetrics.classification import BinaryF1Score

    if classes != 2:
        raise ValueError(f"f1 is of class 1 against class 0, so the task has two classes; this one has {classes}")
    return Meter(BinaryF1Score(validate_args=False, **_ALONE), lambda scores, labels: (scores.argmax(dim=-1), labels))


def _perplexity(classes: int) -> Meter:
    from torchmetrics.text import Perplexity

    return Meter(Perplexity(**_ALONE), lambda scores, labels: (scores[None].float(), labels[None]))


class Meter:
    """A metric of torchmetrics that takes (answers, classes) scores and (answers,) labels, whatever form it wants them in."""

    def __init__(self, metric: Metric, form: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        self._metric, self._form = metric, form

    def update(self, scores: Float[Tensor, "answers classes"], labels: Int[Tensor, " answers"]) -> None:
        """Take some answers into account."""
        self._metric.to(scores.device).update(*self._form(scores, labels))

    def compute(self) -> float:
        """The figure over all answers so far."""
        return float(self._metric.compute())

    def compute_together(self, device: torch.device) -> float:
        """The figure over all answers of all processes, whose counts are added; each of them asks for it."""
        self._metric.to(device).sync()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The ``compute`` method")  # all answers may be other processes'
            return self.compute()


_MEASURES = {
    "accuracy": Measure("accuracy", True, _accuracy),
    "f1": Measure("f1", True, _f1),
    "perplexity": Measure("perplexity", False, _perplexity),
}
MEASURES: Mapping[str, Measure] = _MEASURES


def measure_named(name: str) -> Measure:
    """The metric of this name.

    Raises:
        UnknownNameError: there is none; the message lists them.
    """
    if name not in _MEASURES:
        raise UnknownNameError("metric", name, _MEASURES)
    return _MEASURES[name]


def answers(model: nn.Module, batch: Batch) -> tuple[Float[Tensor, "answers classes"], Int[Tensor, " answers"]]:
    """Class scores and labels of all that a batch asks: one an example, or one a position that is not ``UNASKED``."""
    if batch.labels.dim() == 1:
        return model(batch.inputs, batch.valid), batch.labels
    asked: Bool[Tensor, "batch length"] = batch.labels != UNASKED
    return model(batch.inputs, batch.valid, asked), batch.labels[asked]


@torch.inference_mode()
def evaluate(
    model: nn.Module, examples: Examples, spec: TaskSpec, measure: Measure, accelerator: Accelerator, limit: int | None = None
) -> float:
    """The metric over every example, none dropped; ``limit`` takes the first so many."""
    count = len(examples) if limit is None else min(limit, len(examples))
    return evaluate_parts(model, examples, spec, measure, accelerator, {"all": torch.ones(count, dtype=torch.bool)})["all"]


@torch.inference_mode()
def evaluate_parts(
    model: nn.Module,
    examples: Examples,
    spec: TaskSpec,
    measure: Measure,
    accelerator: Accelerator,
    parts: Mapping[str, Bool[Tensor, " count"] | Bool[Tensor, "count length"]],
) -> dict[str, float]:
    """The metric over each of several parts of the first ``count`` examples, or of their positions, each example read once.

    Several processes deal out the batches among them.

    Raises:
        StoppedError: a signal asked to stop, where it is held back.
    """
    processes, was_training = Processes(), model.training
    model.eval()
    meters = {name: measure.make(spec.classes) for name in parts}
    count = len(next(iter(parts.values())))
    size = max(1, min(256, EVALUATION_TOKENS // spec.positions))
    for at in range(processes.index * size, count, processes.count * size):
        if asked():
            break
        until = min(at + size, count)
        batch = to_device(examples.batch(range(at, until)), accelerator.device)
        with accelerator.autocast():
            scores, labels = answers(model, batch)
        questions = (batch.labels.cpu() != UNASKED).reshape(until - at, -1)
        for name, members in parts.items():
            here = members[at:until].reshape(until - at, -1).expand_as(questions)[questions]
            if here.any():
                meters[name].update(scores[here], labels[here])
    model.train(was_training)
    if number := processes.agree(stop=asked()).stop:
        raise StoppedError(number)
    return {name: meters[name].compute_together(accelerator.device) for name, members in parts.items() if members.any()}


def constant_score(train_labels: Tensor, test_labels: Tensor, spec: TaskSpec, measure: Measure) -> float:
    """Test score of giving every question the same answer, the shares of the training labels: chance, for one who knows those."""
    shares = torch.bincount(train_labels[train_labels != UNASKED], minlength=spec.classes).double()
    scores = (shares / shares.sum()).clamp_min(1e-12).log().float()
    labels = test_labels[test_labels != UNASKED]
    metric = measure.make(spec.classes)
    for part in labels.split(max(1, 2**24 // spec.classes)):
        metric.update(scores.expand(len(part), -1), part)
    return metric.compute()


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The same batch on ``device``."""
    valid = None if batch.valid is None else batch.valid.to(device)
    return Batch(batch.inputs.to(device), valid, batch.labels.to(device))
