"""Metrics, such as accuracy. Each gives one number for a set of examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import send_to_device
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attn_zoo.contract import METRICS, Batch, Examples, Labels, TaskSpec, UnknownNameError, scored
from attn_zoo.runner.interrupts import StoppedError, asked
from attn_zoo.runner.patience import beat
from attn_zoo.runner.state import DivergedError

EVALUATION_TOKENS = 2**16
"""Maximum number of tokens in an evaluation batch, which also has at most 256 examples."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Metric, computed from counts that are added up over all answers. An answer is the network's output for one example or, if
    every position is scored, for one position."""

    name: str
    """Name on task cards."""
    higher_is_better: bool
    count: Callable[[Tensor, Tensor], Sequence[Tensor | float]]
    """Function that takes outputs of shape (answers, classes) and their labels, and returns counts, such as those of correct
    answers and of all answers."""
    figure: Callable[..., float]
    """Function that takes the number of classes and the sums of the counts, and returns the metric."""

    def better(self, score: float, than: float | None) -> bool:
        """Return True if ``score`` is better than ``than``. Every score is better than None."""
        if than is None:
            return True
        return score > than if self.higher_is_better else score < than

    def make(self, classes: int) -> Meter:
        """Return a new meter of this metric.

        Raises:
            ValueError: the metric is not defined for this number of classes.
        """
        if self.name == "f1" and classes != 2:
            raise ValueError(
                "the metric f1 needs a task with two classes, because it is the F1 score of class 1 against class 0; this task "
                f"has {classes}. Use accuracy"
            )
        return Meter(self, classes)


class Meter:
    """Running computation of a metric, batch by batch."""

    def __init__(self, measure: Measure, classes: int) -> None:
        self._measure, self._classes = measure, classes
        self._sums: list[float] = []
        """Sums of the counts; empty before the first answer."""

    def update(
        self, scores: Float[Tensor, "answers classes"], labels: Int[Tensor, " answers"] | Float[Tensor, "answers classes"]
    ) -> None:
        """Add the counts of further answers to the sums."""
        counts = [float(count) for count in self._measure.count(scores, labels)]
        self._sums = [a + b for a, b in zip(self._sums, counts, strict=True)] if self._sums else counts

    def compute(self) -> float:
        """Return the metric over all answers added so far, rounded to float32.

        Raises:
            ValueError: no answers were added.
        """
        if not self._sums:
            raise ValueError("a metric must get at least one prediction; got none")
        return torch.tensor(self._measure.figure(self._classes, *self._sums), dtype=torch.float32).item()


def _of_class_1(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the counts of true positives, predicted members and actual members of class 1."""
    predicted, actual = scores.argmax(dim=-1) == 1, labels == 1
    return (predicted & actual).sum(), predicted.sum(), actual.sum()


def _of_each_class(scores: Tensor, labels: Tensor) -> list[Tensor]:
    """Return the counts of true positives, predicted members and actual members of each class. A score above 0 predicts a class."""
    predicted, actual = scores > 0, labels > 0
    return [count for part in (predicted & actual, predicted, actual) for count in part.sum(dim=0)]


def _f1(right: float, predicted: float, actual: float) -> float:
    """Return the harmonic mean of precision and recall, from the counts of true positives, predicted members and actual members. It
    is 0 without members."""
    return 2 * right / max(predicted + actual, 1)


def _thirds(sums: Sequence[float]) -> list[Sequence[float]]:
    """Return the sums of three counts, each for all classes."""
    classes = len(sums) // 3
    return [sums[at : at + classes] for at in range(0, len(sums), classes)]


def _squares(scores: Tensor, labels: Tensor) -> list[Tensor | float]:
    """Return the number of answers, then for each predicted number the sums of squared errors, of labels and of squared labels."""
    scores, labels = scores.double(), labels.double()
    parts = ((scores - labels).square(), labels, labels.square())
    return [len(labels), *(total for part in parts for total in part.sum(dim=0))]


def _r2(classes: int, answers: float, *sums: float) -> float:
    """Return the coefficient of determination, as a mean over the predicted numbers. 1 is perfect, and 0 is as good as the mean
    label. A number that is the same in all labels counts as 0."""
    spreads = [(error, square - total**2 / answers, square) for error, total, square in zip(*_thirds(sums), strict=True)]
    # Equal labels leave a spread of roundings.
    return sum(1 - error / spread if spread > 1e-12 * square else 0.0 for error, spread, square in spreads) / classes


_MEASURES = (
    Measure(
        "accuracy",
        True,
        lambda scores, labels: ((scores.argmax(dim=-1) == labels).sum(), len(labels)),
        lambda _, right, answers: right / answers,
    ),
    Measure("f1", True, _of_class_1, lambda _, *counts: _f1(*counts)),
    Measure(  # the exponential of the mean negative log-likelihood of the labels
        "perplexity",
        False,
        lambda scores, labels: (F.cross_entropy(scores.float(), labels, reduction="sum"), len(labels)),
        lambda _, loss, answers: torch.tensor(loss / answers, dtype=torch.float64).exp().item(),
    ),
    # F1 over all answers and classes together, and the mean of F1 over the classes
    Measure("f1_micro", True, _of_each_class, lambda _, *counts: _f1(*(sum(part) for part in _thirds(counts)))),
    Measure("f1_macro", True, _of_each_class, lambda classes, *counts: sum(map(_f1, *_thirds(counts))) / classes),
    Measure("r2", True, _squares, _r2),
    Measure("mse", False, _squares, lambda classes, answers, *sums: sum(sums[:classes]) / (answers * classes)),
)
MEASURES: Mapping[str, Measure] = {measure.name: measure for measure in _MEASURES}


def measure_named(name: str) -> Measure:
    """Return the metric called ``name``.

    Raises:
        UnknownNameError: no metric has this name.
    """
    if name not in MEASURES:
        raise UnknownNameError("metric", name, MEASURES)
    return MEASURES[name]


def measure_of(name: str, spec: TaskSpec) -> Measure:
    """Return the metric called ``name``, after checking that it fits the task's kind of problem.

    Raises:
        UnknownNameError: no metric has this name.
        ValueError: the metric is for another kind of problem.
    """
    measure, fit = measure_named(name), METRICS[spec.problem]
    if name not in fit:
        raise ValueError(
            f"the metric {name} cannot be used for this task, because its problem is {spec.problem}. Use {' or '.join(fit)}"
        )
    return measure


def answers(model: nn.Module, batch: Batch) -> tuple[Float[Tensor, "answers classes"], Labels]:
    """Return the outputs of a network for a batch, and their labels. There is one output for each example or, if the labels
    belong to positions, for each scored position."""
    asked = scored(batch.labels)
    if asked.dim() == 1:
        return model(batch.inputs, batch.valid), batch.labels
    return model(batch.inputs, batch.valid, asked), batch.labels[asked]


@torch.inference_mode()
def evaluate(
    model: nn.Module, examples: Examples, spec: TaskSpec, measure: Measure, accelerator: Accelerator, limit: int | None = None
) -> float:
    """Return the metric of a network over all examples.

    Args:
        limit: number of examples to use, beginning with the first; None for all.

    Raises:
        StoppedError: a delayed signal stops the run.
    """
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
    """Return the metric of a network over each part of the examples. Each example is read only once.

    Args:
        parts: mask of each part, by name. A mask selects some of the first n examples, or some of their positions. All masks have
            the same n, and further examples are not read.

    Raises:
        DivergedError: an output of the network is NaN or infinite.
        StoppedError: a delayed signal stops the run.
    """
    was_training = model.training
    model.eval()
    meters = {name: measure.make(spec.classes) for name in parts}
    count = len(next(iter(parts.values())))
    size = max(1, min(256, EVALUATION_TOKENS // spec.positions))
    for at in range(0, count, size):
        beat()
        if asked():
            break
        until = min(at + size, count)
        batch = send_to_device(examples.batch(range(at, until)), accelerator.device)
        with accelerator.autocast():
            scores, labels = answers(model, batch)
        if not scores.isfinite().all():
            raise DivergedError("the network's outputs became NaN or infinite")
        questions = scored(batch.labels.cpu()).reshape(until - at, -1)
        for name, members in parts.items():
            mask = members[at:until].reshape(until - at, -1).expand_as(questions)[questions]
            if mask.any():
                meters[name].update(scores[mask], labels[mask])
    model.train(was_training)
    if number := asked():
        raise StoppedError(number)
    return {name: meters[name].compute() for name, members in parts.items() if members.any()}


def constant_score(train_labels: Labels, test_labels: Labels, spec: TaskSpec, measure: Measure) -> float:
    """Return the chance level: the test score of always giving the constant answer that fits the training labels best.

    For ``classification``, the constant answer is the frequency of each class among the training labels, as a probability. For
    ``multi_label``, it is the set of the k most frequent classes, with the k that has the best score on the training labels. For
    ``regression``, it is the mean training label.
    """
    train, test = train_labels[scored(train_labels)], test_labels[scored(test_labels)]
    if spec.problem == "regression":
        return _score_of(train.double().mean(dim=0), test, spec, measure)
    if spec.problem == "classification":
        shares = torch.bincount(train, minlength=spec.classes).double()
        return _score_of((shares / shares.sum()).clamp_min(1e-12).log().float(), test, spec, measure)
    rank = train.sum(dim=0).argsort(descending=True, stable=True).argsort()
    guesses = [torch.where(rank < count, 1.0, -1.0) for count in range(spec.classes + 1)]
    scores = [_score_of(guess, train, spec, measure) for guess in guesses]
    return _score_of(guesses[scores.index(max(scores))], test, spec, measure)


def _score_of(constant: Float[Tensor, " classes"], labels: Tensor, spec: TaskSpec, measure: Measure) -> float:
    """Return the metric of a constant output, which is the same for all answers."""
    metric = measure.make(spec.classes)
    for part in labels.split(max(1, 2**24 // spec.classes)):
        metric.update(constant.expand(len(part), -1), part)
    return metric.compute()
