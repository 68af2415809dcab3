"""MNIST: 28 × 28 images of handwritten digits, cut into patches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch

from attn_zoo.contract import Level
from attn_zoo.registry import register_task

from .datasets.images import MNIST
from .parts.arrays import ArrayExamples, standardise
from .parts.augment import Augment
from .parts.images import PublishedOptions, PublishedTask, Splits, patch_levels


@dataclass
class Options(PublishedOptions):
    """Options of the task ``mnist``."""

    valid: int = 5_000
    """Number of validation images. They are the last of the published training images."""
    augment: Augment = Augment.none
    """Augmentation of training images: none or crop; no reflections, because a reflected digit is not a digit."""
    root: str = ""
    """Data folder, which contains ``mnist`` or torchvision's ``MNIST/raw``. An empty string means $ATTN_ZOO_DATA, or ``data`` if
    this variable is not set."""

    task: ClassVar[str] = "mnist"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.augment is Augment.crop_flip:
            raise ValueError("mnist.augment must be none or crop, because digits must not be mirrored; got crop_flip")


@register_task(
    "mnist",
    title="MNIST (patches)",
    version="1",
    summary="Classify 28 x 28 images of handwritten digits as patches in a timm VisionTransformer; ten classes.",
    source=MNIST.source,
    licence=MNIST.licence,
    options=Options,
    locations=("root",),
    levels={
        "quick": Level(model={}, budget={"steps": 1000, "learning_rate": 2e-3}),
        **patch_levels("none", epochs=7),
    },
    datasets=(MNIST,),
)
class Mnist(PublishedTask):
    """Classification of 28 × 28 images of handwritten digits.

    Source: the published files and their published split into training and test images.
    Differs: the source has no validation split. Here the last training images form the validation split. No image occurs twice
        in the source.
    """

    options: Options
    data = MNIST

    def splits(self, root: Path) -> Splits:
        """Return the train, valid and test examples, read from the data folder ``root``. They are cached."""
        return _splits(root, self.options.valid, self.options.train)


@lru_cache(maxsize=2)
def _splits(root: Path, valid: int, train: int) -> Splits:
    found = MNIST.load(root)
    images, labels = found.train.levels, found.train.labels
    kept = len(labels) - valid
    scaled = standardise(images[: train or kept], images[kept:], found.test.levels)
    answers = (labels[: train or kept], labels[kept:], found.test.labels)
    first, second, third = (ArrayExamples(x, torch.from_numpy(y)) for x, y in zip(scaled, answers, strict=True))
    return first, second, third
