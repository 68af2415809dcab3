"""Digits: 8 × 8 images of handwritten digits, cut into patches; ships with scikit-learn, so it needs no download."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from attn_zoo.contract import SPLITS, Examples, Level, Patches, Split, Task, TaskSpec
from attn_zoo.registry import register_task

from .arrays import ArrayExamples

SIDE = 8
SHARES = (0.70, 0.10, 0.20)
"""Of train, valid and test, class by class."""


@dataclass
class Options:
    """Options of digits."""

    patch: int = 2
    """Pixels a side of a patch: 1, 2 or 4, for 64, 16 or 4 patches."""
    data_seed: int = 0
    """Decides which image is in which split."""

    def __post_init__(self) -> None:
        if self.patch not in (1, 2, 4):
            raise ValueError(
                f"digits.patch must be 1, 2 or 4, which divide 8 pixels into at least two patches a side; got {self.patch}"
            )


@register_task(
    "digits",
    title="Digits (patches)",
    version="1",
    summary="8 x 8 images of handwritten digits as patches in a timm VisionTransformer; ten classes.",
    source="Optical Recognition of Handwritten Digits, Alpaydin and Kaynak 1998, UCI; its test part, as shipped with scikit-learn",
    licence="CC BY 4.0",
    options=Options,
    levels={"quick": Level(model={}, budget={"steps": 600, "learning_rate": 3e-3, "evaluate_every": 50})},
    variants={"pixels": {"patch": 1}},
)
class Digits(Task):
    """Which digit an 8 × 8 image shows.

    Source: 1,797 images, grey levels 0 to 16, from scikit-learn.
    Differs: the source has no split; here 70 % train, 10 % validate and 20 % test, class by class.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """One channel, ``patch`` pixels a side."""
        return TaskSpec(Patches(1, SIDE, SIDE, self.options.patch), (SIDE // self.options.patch) ** 2, classes=10)

    def examples(self, split: Split) -> Examples:
        """All images of a split, standardised by the mean and deviation of the training pixels."""
        return _splits(self.options.data_seed)[SPLITS.index(split)]


@lru_cache(maxsize=4)
def _splits(seed: int) -> tuple[ArrayExamples, ...]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images, labels = images.reshape(-1, 1, SIDE, SIDE).astype(np.float32), labels.astype(np.int64)
    members: list[list[int]] = [[], [], []]
    order = np.random.RandomState(seed).permutation(len(labels))  # frozen by numpy: the same order in every version
    for digit in range(10):
        own = order[labels[order] == digit]
        first, second = (round(len(own) * share) for share in (SHARES[0], SHARES[0] + SHARES[1]))
        for part, chosen in zip(members, (own[:first], own[first:second], own[second:]), strict=True):
            part.extend(chosen.tolist())
    mean, deviation = images[members[0]].mean(dtype=np.float64), images[members[0]].std(dtype=np.float64)
    scaled = ((images - mean) / deviation).astype(np.float32)
    return tuple(ArrayExamples(torch.from_numpy(scaled[part]), torch.from_numpy(labels[part])) for part in members)
