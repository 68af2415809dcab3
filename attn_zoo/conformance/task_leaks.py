"""Checks that the labels of a task cannot be predicted from the order of its examples, from one token or from the length."""

from __future__ import annotations

import torch
from torch import Tensor

from attn_zoo.conformance.harness import NotApplicable, require
from attn_zoo.conformance.task_checks import task_check
from attn_zoo.contract import SPLITS, Examples, Frames, Patches, Task, scored

TRAIN, TEST = 2048, 1024
"""Largest numbers of examples from which a simple guesser learns, and on which it is tested."""
# With fewer labels, the token at one of the many positions may predict them by chance.
FEWEST = 50
"""Smallest number of test labels with which a task is checked for shortcuts."""
TOLD = 0.99
"""Share of test labels that a guesser must predict to count as a shortcut. Its errors must also be at most a tenth of those of
always guessing the most frequent class."""
LAST = 4
"""How many last tokens of each example are also tried as predictors of the label."""


@task_check
def order_tells_nothing(task: Task) -> str:
    """Labels of neighbouring examples are no more alike than labels of any two examples of the split."""
    if task.spec.labels == "position":
        raise NotApplicable("the task has labels per position, not per example")
    worst = 0.0
    for split in SPLITS:
        labels = task.examples(split).labels()
        if len(labels) > 1:
            require_chance = _require_uncorrelated if labels.is_floating_point() else _require_mixed
            worst = max(worst, require_chance(split, labels))
    if task.spec.problem != "classification":
        return f"neighbours correlate by at most {worst:.2f}"
    return f"neighbours share a class at most {100 * worst:.1f} points more often than any two"


def _require_mixed(split: str, labels: Tensor) -> float:
    """Require that neighbours share a class only as often as chance explains. Return how much more often they share one than any
    two examples do."""
    shares = torch.bincount(labels) / len(labels)
    expected = float(shares.square().sum())
    found = float((labels[1:] == labels[:-1]).float().mean())
    spread = (expected * (1 - expected) / len(labels)) ** 0.5
    require(
        found <= expected + 6 * spread + 2 / len(labels),
        f"{split}: {found:.0%} of neighbours share their class, {expected:.0%} would in random order; shuffle the examples",
    )
    return found - expected


def _require_uncorrelated(split: str, labels: Tensor) -> float:
    """Require that chance explains the correlation between the labels of neighbours. Return the largest correlation."""
    centred = (labels - labels.mean(dim=0)).double()
    found = float(((centred[1:] * centred[:-1]).sum(dim=0) / centred.square().sum(dim=0).clamp_min(1e-30)).max())
    require(
        found <= 6 / len(labels) ** 0.5,
        f"{split}: labels of neighbours correlate by {found:.2f}, in random order they would not; shuffle the examples",
    )
    return found


@task_check
def no_shortcut_tells_the_label(task: Task) -> str:
    """The label of an example cannot be predicted from one token or from the length. Otherwise a model would need no attention.

    If labels belong to examples, a simple guesser is tried at each position. From the train split, it learns the most frequent
    class for each token at this position. The guesser is also tried with the length of the example instead of a token. If labels
    belong to positions, the guesser uses the token at the labelled position.

    The task fails if a guesser is right for at least 99 % of the test labels, and makes at most a tenth of the errors of always
    guessing the most frequent class.
    """
    spec = task.spec
    if isinstance(spec.inputs, Patches | Frames) or spec.problem != "classification":
        raise NotApplicable("the check needs tokens as inputs and classes as labels")
    place = _by_position if spec.labels == "position" else _by_example
    train, test = place(task.examples("train"), TRAIN), place(task.examples("test"), TEST)
    best = 0.0
    for where in [each for each in train if each in test]:
        if len(test[where][1]) < FEWEST:
            raise NotApplicable(f"there are fewer than {FEWEST} test labels")
        told, constant = _told(train[where], test[where], max(spec.inputs.vocabulary, spec.length + 1), spec.classes)
        require(
            told < TOLD or 1 - told > (1 - constant) / 10,
            f"{where} predicts {told:.1%} of test labels, so a model without attention can do this task",
        )
        best = max(best, told)
    return f"one token or the length predicts at most {best:.0%} of test labels"


def _by_position(examples: Examples, most: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the tokens at the scored positions, and their labels."""
    batch = examples.batch(range(min(most, len(examples))))
    asked = scored(batch.labels)
    return {"the token at a labelled position": (batch.inputs[asked], batch.labels[asked])}


def _by_example(examples: Examples, most: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return labels, with the tokens at each position (-1 if an example has none there) or with the lengths. In pairs, each
    sequence is used."""
    batch = examples.batch(range(min(most, len(examples))))
    found: dict[str, tuple[Tensor, Tensor]] = {}
    tokens = batch.inputs if batch.valid is None else batch.inputs.masked_fill(~batch.valid, -1)
    sides = {"": tokens} if tokens.dim() == 2 else {f" of sequence {side + 1}": tokens[:, side] for side in range(tokens.shape[1])}
    for name, side in sides.items():
        length = (side >= 0).sum(dim=1)
        found[f"the length{name}"] = (length, batch.labels)
        for place in range(-LAST, side.shape[1]):
            at = torch.full_like(length, place) if place >= 0 else length + place
            chosen = side.gather(1, at.clamp_min(0)[:, None])[:, 0].masked_fill(at < 0, -1)
            found[f"the token at position {place}{name}"] = (chosen, batch.labels)
    return found


def _told(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], kinds: int, classes: int) -> tuple[float, float]:
    """Return two shares of correctly guessed test labels. The first guess is the class that is most frequent in train for the same
    token or length. The second is the most frequent class of train.

    Args:
        kinds: number of different tokens or lengths.

    Raises:
        NotApplicable: numbers are outside the spec, which other checks test.
    """
    for tokens, labels in (train, test):
        if not len(labels) or not 0 <= int(labels.min()) <= int(labels.max()) < classes or int(tokens.max()) >= kinds:
            raise NotApplicable("there are no labels, or labels or tokens are outside the spec")
    tokens, labels = train
    pairs, counts = (tokens * classes + labels)[tokens >= 0].unique(return_counts=True)
    seen, guesses = pairs // classes, pairs % classes
    most = torch.zeros(kinds, dtype=torch.long).scatter_reduce(0, seen, counts, "amax")
    first = counts == most[seen]
    rule = torch.full((kinds,), -1).scatter_reduce(0, seen[first], guesses[first], "amax")
    frequent = labels.mode().values
    tokens, labels = test
    return float(((rule[tokens] == labels) & (tokens >= 0)).float().mean()), float((labels == frequent).float().mean())
