"""Oracles of drawn tasks: what solves an example from its tokens alone, and how far a hint goes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attn_zoo.contract import SPLITS, UNASKED, Examples, Task


def everything(examples: Examples) -> tuple[Tensor, Tensor]:
    """Tokens and labels of a split that is not padded."""
    batch = examples.batch(range(len(examples)))
    assert batch.valid is None
    return batch.inputs, batch.labels


def assert_solved(task: Task, oracle: Callable[[list[int]], dict[int, int]]) -> None:
    """The oracle sees one example's tokens and gives the label of each position that is asked."""
    for split in SPLITS:
        for ids, label in zip(*everything(task.examples(split)), strict=True):
            asked = (label != UNASKED).nonzero()[:, 0].tolist()
            assert oracle(ids.tolist()) == {at: int(label[at]) for at in asked}


def most_frequent(examples: Examples, at: Tensor | None = None) -> float:
    """Accuracy of the most frequent label, of the whole split or by each value of ``at``."""
    labels = examples.labels()
    asked = labels[labels != UNASKED]
    groups = torch.zeros_like(asked) if at is None else at
    right = sum(int(asked[groups == group].bincount().max()) for group in groups.unique())
    return right / len(asked)
