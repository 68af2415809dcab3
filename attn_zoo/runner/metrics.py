"""Metrics: one number for each split, computed over every example of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attn_zoo.contract import UNASKED, Batch, Examples, TaskSpec, UnknownNameError
from attn_zoo.runner.interrupts import StoppedError, asked
from attn_zoo.runner.processes import Processes

EVALUATION_TOKENS = 2**16
"""Tokens of a batch in evaluation, which has at most 256 examples."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Metric, by its name on a task's card."""

    name: str
    higher_is_better: bool
    make: Callable[[int], Meter]
    """Constructor of the meter, from the number of classes."""

    def better(self, score: float, than: float | None) -> bool:
        """Return whether ``score`` is better than ``than``; every score is better than None."""
        if than is None:
            return True
        return score > than if self.higher_is_better else score < than


class Meter:
    """Sums of counts over all answers so far, and the metric computed from them.

    Args:
        count: function from (answers, classes) scores and (answers,) labels to counts.
        figure: function from the sums of the counts to the metric.
    """

    def __init__(self, count: Callable[[Tensor, Tensor], Sequence[Tensor | int]], figure: Callable[..., float]) -> None:
        self._count, self._figure = count, figure
        self._sums: list[float] = []
        """Sums of the counts; empty before the first answer."""

    def update(self, scores: Float[Tensor, "answers classes"], labels: Int[Tensor, " answers"]) -> None:
        """Add the counts of some answers."""
        self._sums = _add(self._sums, [float(count) for count in self._count(scores, labels)])

    def compute(self) -> float:
        """Metric over all answers so far, rounded to float32.

        Raises:
            ValueError: there are no answers.
        """
        if not self._sums:
            raise ValueError("a metric needs an answer; there was none")
        return torch.tensor(self._figure(*self._sums), dtype=torch.float32).item()

    def compute_together(self, processes: Processes) -> float:
        """Metric over the answers of all processes, each of which must call it."""
        self._sums = reduce(_add, processes.gather(self._sums))
        return self.compute()


def _add(one: list[float], other: list[float]) -> list[float]:
    return [a + b for a, b in zip(one, other, strict=True)] if one and other else one or other


def _accuracy(classes: int) -> Meter:
    """Share of correct answers."""
    return Meter(
        lambda scores, labels: ((scores.argmax(dim=-1) == labels).sum(), len(labels)),
        lambda right, answers: right / answers,
    )


def _f1(classes: int) -> Meter:
    """Harmonic mean of precision and recall of class 1; 0 if neither labels nor answers contain it."""
    if classes != 2:
        raise ValueError(f"f1 is of class 1 against class 0, so the task has two classes; this one has {classes}")

    def count(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        predicted, actual = scores.argmax(dim=-1) == 1, labels == 1
        return (predicted & actual).sum(), predicted.sum(), actual.sum()

    return Meter(count, lambda right, predicted, actual: 2 * right / max(predicted + actual, 1))


def _perplexity(classes: int) -> Meter:
    """Exponential of the mean negative log-likelihood of the labels."""
    return Meter(
        lambda scores, labels: (F.cross_entropy(scores.float(), labels, reduction="sum"), len(labels)),
        lambda loss, answers: torch.tensor(loss / answers, dtype=torch.float64).exp().item(),
    )


_MEASURES = {
    "accuracy": Measure("accuracy", True, _accuracy),
    "f1": Measure("f1", True, _f1),
    "perplexity": Measure("perplexity", False, _perplexity),
}
MEASURES: Mapping[str, Measure] = _MEASURES


def measure_named(name: str) -> Measure:
    """Metric of this name.

    Raises:
        UnknownNameError: no metric has this name; the message lists those that exist.
    """
    if name not in _MEASURES:
        raise UnknownNameError("metric", name, _MEASURES)
    return _MEASURES[name]


def answers(model: nn.Module, batch: Batch) -> tuple[Float[Tensor, "answers classes"], Int[Tensor, " answers"]]:
    """Class scores and labels of a batch: one for each example, or one for each position that is not ``UNASKED``."""
    if batch.labels.dim() == 1:
        return model(batch.inputs, batch.valid), batch.labels
    queried: Bool[Tensor, "batch length"] = batch.labels != UNASKED
    return model(batch.inputs, batch.valid, queried), batch.labels[queried]


@torch.inference_mode()
def evaluate(
    model: nn.Module, examples: Examples, spec: TaskSpec, measure: Measure, accelerator: Accelerator, limit: int | None = None
) -> float:
    """Metric over every example, or over the first ``limit``."""
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
    """Metric over each part of the first ``count`` examples, or of their positions; each example is read once.

    Several processes divide the batches among them.

    Raises:
        StoppedError: a deferred signal stops the run.
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
            mask = members[at:until].reshape(until - at, -1).expand_as(questions)[questions]
            if mask.any():
                meters[name].update(scores[mask], labels[mask])
    model.train(was_training)
    if number := processes.agree(stop=asked()).stop:
        raise StoppedError(number)
    return {name: meters[name].compute_together(processes) for name, members in parts.items() if members.any()}


def constant_score(train_labels: Tensor, test_labels: Tensor, spec: TaskSpec, measure: Measure) -> float:
    """Test score of a constant prediction, the class frequencies of the training labels: the chance level."""
    shares = torch.bincount(train_labels[train_labels != UNASKED], minlength=spec.classes).double()
    scores = (shares / shares.sum()).clamp_min(1e-12).log().float()
    labels = test_labels[test_labels != UNASKED]
    metric = measure.make(spec.classes)
    for part in labels.split(max(1, 2**24 // spec.classes)):
        metric.update(scores.expand(len(part), -1), part)
    return metric.compute()


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Copy of the batch on ``device``."""
    valid = None if batch.valid is None else batch.valid.to(device)
    return Batch(batch.inputs.to(device), valid, batch.labels.to(device))
