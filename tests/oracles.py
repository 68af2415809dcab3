"""Checks of generated tasks: an oracle solves every example from its tokens alone; accuracy of the most frequent label."""

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
    """Assert that the oracle returns the label of each labelled position from the tokens of an example."""
    for split in SPLITS:
        for ids, label in zip(*everything(task.examples(split)), strict=True):
            asked = (label != UNASKED).nonzero()[:, 0].tolist()
            assert oracle(ids.tolist()) == {at: int(label[at]) for at in asked}


def most_frequent(examples: Examples, at: Tensor | None = None) -> float:
    """Accuracy of predicting the most frequent label, in the whole split or for each value of ``at``."""
    labels = examples.labels()
    asked = labels[labels != UNASKED]
    groups = torch.zeros_like(asked) if at is None else at
    right = sum(int(asked[groups == group].bincount().max()) for group in groups.unique())
    return right / len(asked)


def text_of(ids: Tensor) -> str:
    """Text of an example whose tokens are bytes plus one; 0 is padding."""
    return bytes((ids[ids > 0] - 1).tolist()).decode()
