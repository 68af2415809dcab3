"""Digits: 8 × 8 images of handwritten digits from scikit-learn, cut into patches. Nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from attn_zoo.contract import SPLITS, Examples, Level, Patches, Split, Task, TaskSpec
from attn_zoo.data.images import Images
from attn_zoo.registry import register_task

from .parts.arrays import ArrayExamples, standardise
from .parts.levels import smoke

SIDE = 8
CLASSES = 10
SHARES = (0.70, 0.10, 0.20)
"""Shares of train, valid and test in the images of each class."""


@dataclass
class Options:
    """Options of the task ``digits``."""

    patch: int = 2
    """Side of a patch in pixels: 1, 2 or 4."""
    data_seed: int = 0
    """Seed of the division into splits."""

    def __post_init__(self) -> None:
        if self.patch not in (1, 2, 4):
            raise ValueError(
                f"digits.patch must be 1, 2 or 4, so that at least two patches lie along the 8 pixels of a side; got {self.patch}"
            )
        if not 0 <= self.data_seed < 2**32:
            raise ValueError(f"digits.data_seed must be from 0 to 2^32 - 1; got {self.data_seed}")


@register_task(
    "digits",
    title="Digits (patches)",
    version="2",
    summary="Classify 8 x 8 images of handwritten digits as patches in a timm VisionTransformer; ten classes.",
    source="Optical Recognition of Handwritten Digits, Alpaydin and Kaynak 1998, UCI; its test part, as shipped with scikit-learn",
    licence="CC BY 4.0",
    options=Options,
    levels={
        "quick": Level(
            model={"heads": 2},
            budget={"steps": 600, "learning_rate": 4e-3, "evaluate_every": 50},
            ceiling=0.93,  # softmax: 0.919, 0.934, 0.943 of 180 validation images, means over steps 501 to 1,000 at a constant rate
        ),
        "smoke": smoke({}, steps=10, dim=16, depth=1),
        "cpu": Level(model={"heads": 2}, budget={"steps": 2_000, "evaluate_every": 200}),
        "lra": Level(
            model={"dim": 192, "depth": 12, "heads": 3, "mlp_ratio": 4.0, "dropout": 0.1},
            budget={"steps": 5_000, "learning_rate": 1e-3, "weight_decay": 0.05, "warmup_steps": 250, "evaluate_every": 250},
            differs="ViT-Tiny's sizes (Touvron et al. 2021, arXiv:2012.12877); nobody published a ViT on so small images",
        ),
    },
    variants={"pixels": {"patch": 1}},
)
class Digits(Task):
    """Classification of 8 × 8 images of handwritten digits.

    Source: 1,797 images with grey levels from 0 to 16, from scikit-learn.
    Differs: the source has no splits. Here 70 % of every class are in train, 10 % in valid and 20 % in test, in random order. No
        two images are equal.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: patches of ``patch`` × ``patch`` pixels with one channel."""
        return TaskSpec(Patches(1, SIDE, SIDE, self.options.patch), (SIDE // self.options.patch) ** 2, classes=CLASSES)

    @property
    def data_title(self) -> str:
        """Title of the images."""
        return "UCI digits (scikit-learn)"

    def examples(self, split: Split) -> Examples:
        """Return the images of a split. Pixels are standardised with the mean and the standard deviation of the training pixels."""
        return _splits(self.options.data_seed)[SPLITS.index(split)]


@lru_cache(maxsize=4)
def _splits(seed: int) -> tuple[ArrayExamples, ...]:
    parts = [divided(seed)[split] for split in SPLITS]
    scaled = standardise(*(part.levels for part in parts))
    return tuple(ArrayExamples(x, torch.from_numpy(part.labels)) for x, part in zip(scaled, parts, strict=True))


@lru_cache(maxsize=4)
def divided(seed: int) -> dict[Split, Images]:
    """Return the grey levels (images, 1, 8, 8) and the labels of each split. They are cached, so they must not be modified."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images, labels = images.reshape(-1, 1, SIDE, SIDE).astype(np.uint8), labels.astype(np.int64)
    order = np.random.RandomState(seed).permutation(len(labels))  # frozen by numpy: equal in every version
    part = np.empty(len(labels), dtype=np.int64)
    for digit in range(CLASSES):
        own = order[labels[order] == digit]
        first, second = (round(len(own) * share) for share in (SHARES[0], SHARES[0] + SHARES[1]))
        part[own[:first]], part[own[first:second]], part[own[second:]] = 0, 1, 2
    members = {split: order[part[order] == at] for at, split in enumerate(SPLITS)}
    return {split: Images(images[own], labels[own]) for split, own in members.items()}
