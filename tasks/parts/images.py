"""Base classes of image tasks: splits without common images, standardised levels, and patches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Generator, Tensor

from attn_zoo.contract import SPLITS, Batch, DataSet, Examples, Level, Patches, Split, Task, TaskSpec
from attn_zoo.data import data_root
from attn_zoo.data.images import Expected, Images, ImageSplits

from ..datasets.images import EXPECTED
from .arrays import ArrayExamples, level_scale
from .augment import Augment, augmented
from .division import Row, divide
from .levels import smoke
from .options import choice, either

PATCHES = {28: (2, 4, 7, 14), 32: (1, 2, 4, 8)}
"""Sides of patches that divide an image of a published data set, by the side of the image."""

Parts = tuple[Images, Images, Images]
"""Images of train, valid and test."""


def split_images(found: ImageSplits, valid: int, train: int = 0) -> Parts:
    """Return the images of train, valid and test. The published training split is divided into train and valid; the published test
    split stays complete.

    Training images that occur in the test split are left out, and so are duplicates.

    Args:
        found: images of the published splits.
        valid: number of validation images, which have the same proportions of classes as the training images.
        train: number of training images. The first images are used; 0 means all.

    Raises:
        ValueError: there are fewer training images than required.
    """
    at = divide(_rows(found.train), _rows(found.test), valid)
    if train > len(at.train):
        raise ValueError(
            f"train must be at most {len(at.train)}, the number of images left after validation images and duplicates are taken "
            f"out; got {train}"
        )
    return _take(found.train, at.train[: train or None]), _take(found.train, at.valid), _take(found.test, at.test)


def _rows(images: Images) -> list[Row]:
    return [(image.tobytes(), label) for image, label in zip(images.levels, images.labels.tolist(), strict=True)]


def _take(images: Images, at: Sequence[int]) -> Images:
    places = np.array(at, dtype=np.int64)
    return Images(images.levels[places], images.labels[places])


def channel_scale(levels: UInt8[np.ndarray, "images channels height width"]) -> Float[Tensor, "channels 256"]:
    """Return the standardised value of each pixel level from 0 to 255, for each channel. The mean and the standard deviation are
    those of the channel in ``levels``."""
    return torch.from_numpy(np.stack([level_scale(levels[:, channel]) for channel in range(levels.shape[1])]))


Splits = tuple[Examples, Examples, Examples]
"""Examples of train, valid and test."""


def standardised(parts: Parts) -> Splits:
    """Return the examples of each split, with images that are stored as bytes. Batches are standardised per channel, with the mean
    and the standard deviation of the training images."""
    scale = channel_scale(parts[0].levels)
    train, valid, test = (ArrayExamples(torch.from_numpy(x.levels), torch.from_numpy(x.labels), scale=scale) for x in parts)
    return train, valid, test


class PatchTask(Task):
    """Base class of tasks that classify images. The images are cut into patches. A subclass defines the sizes and the splits.

    The options of a subclass include ``patch``, ``augment`` and ``root``.
    """

    options: Any

    @property
    @abstractmethod
    def expected(self) -> Expected:
        """Required image shape, number of images and number of classes."""

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: patches of ``patch`` × ``patch`` pixels, and one class per image."""
        e, patch = self.expected, self.options.patch
        return TaskSpec(Patches(*e.image, patch), (e.height // patch) * (e.width // patch), classes=e.classes)

    @abstractmethod
    def splits(self, root: Path) -> Splits:
        """Return the train, valid and test examples, read from the data folder ``root``. They are cached."""

    def examples(self, split: Split) -> Examples:
        """Return the images of a split. They are standardised per channel, with the mean and the standard deviation of the training
        images.

        Raises:
            MissingDataError: the data are missing.
            DamagedDataError: a file has a wrong content.
        """
        return self.splits(data_root(self.options.root))[SPLITS.index(split)]

    def augment(self, batch: Batch, generator: Generator) -> Batch:
        """Return a training batch whose images are augmented at random. The option ``augment`` selects the kind."""
        return augmented(batch, generator, self.options.augment)


@dataclass
class PublishedOptions:
    """Options of tasks with a published data set of images. A subclass states the name of its task."""

    patch: int = 4
    """Side of a patch in pixels: 1, 2, 4 or 8 for images of 32 pixels a side, and 2, 4, 7 or 14 for those of 28."""
    train: int = 0
    """Number of training images. The first images are used; 0 means all except the validation images."""
    valid: int = 5_000
    """Number of validation images, cut from the published training split with the same proportions of classes."""
    augment: Augment = Augment.none
    """Augmentation of training images: none, crop or crop_flip."""
    root: str = ""
    """Data folder. An empty string means $ATTN_ZOO_DATA, or ``data`` if this variable is not set."""

    task: ClassVar[str]

    def __post_init__(self) -> None:
        expected = EXPECTED[self.task]
        patches = PATCHES[expected.height]
        if self.patch not in patches:
            raise ValueError(
                f"{self.task}.patch must be {either(patches)}, so that at least two patches lie along the {expected.height} pixels "
                f"of a side; got {self.patch}"
            )
        require_shares(self.task, self, expected)
        self.augment = choice(f"{self.task}.augment", self.augment, Augment)


class PublishedTask(PatchTask):
    """Base class of tasks with a published data set of images. ``split_images`` divides the images into splits."""

    options: PublishedOptions
    data: ClassVar[DataSet[ImageSplits]]

    @property
    def expected(self) -> Expected:
        """Required image shape, number of images and number of classes."""
        return EXPECTED[self.data.name]

    def splits(self, root: Path) -> Splits:
        """Return the train, valid and test examples, read from the data folder ``root``. They are cached."""
        return published_splits(type(self), root, self.options.valid, self.options.train)


@lru_cache(maxsize=4)
def published_splits(kind: type[PublishedTask], root: Path, valid: int, train: int) -> Splits:
    """Return the train, valid and test splits of the task ``kind``, with standardised pixels. They are cached."""
    return standardised(split_images(kind.data.load(root), valid, train))


def require_shares(task: str, options: Any, expected: Expected) -> None:
    """Check the options ``train`` and ``valid``: how many published training images each split has.

    Raises:
        ValueError: ``valid`` is less than 1 or more than half of the images, or ``train`` is negative or more than the rest.
    """
    half, left = expected.train // 2, expected.train - options.valid
    if not 1 <= options.valid <= half:
        raise ValueError(
            f"{task}.valid must be from 1 to {half:,}, half of the {expected.train:,} published training images; "
            f"got {options.valid}"
        )
    if not 0 <= options.train <= left:
        raise ValueError(
            f"{task}.train must be 0 (all) or at most {left:,}, the number of images left after validation; got {options.train}"
        )


def require_patch(task: str, patch: int, *sides: int) -> None:
    """Check that an image can be cut into two or more whole patches. ``sides`` are the height and the width of the image, and
    ``patch`` is the side of a patch.

    Raises:
        ValueError: ``patch`` does not divide every side, or there is only one patch.
    """
    if patch < 1 or any(side % patch for side in sides) or all(side == patch for side in sides):
        listed = " x ".join(map(str, sides))
        raise ValueError(f"{task}.patch must divide {listed} pixels into at least two patches; got {patch}")


TINY = {"dim": 192, "depth": 12, "heads": 3, "mlp_ratio": 4.0}
"""Sizes of ViT-Tiny, as in Touvron et al. 2021, arXiv:2012.12877, Table 1."""


def patch_levels(augment: str, epochs: int = 12) -> dict[str, Level]:
    """Return the presets (named sizes of network, data and training) of a task with about 50,000 images of 32 × 32 or 28 × 28
    pixels, and patches of 4 × 4 pixels.

    Args:
        augment: augmentation in the larger presets.
        epochs: number of epochs of the preset ``cpu``, each of 45,000 images, as for CIFAR.
    """
    budget = {"batch_size": 128, "learning_rate": 2e-3, "weight_decay": 0.05, "warmup_steps": 200}
    return {
        "cpu": Level(
            model={"dim": 96, "depth": 4, "heads": 3, "mlp_ratio": 2.0},
            budget={**budget, "steps": 350 * epochs, "evaluate_every": 350},
            options={"augment": augment},
            differs=f"a network of about a seventeenth of ViT-Tiny's parameters, about {epochs} epochs of 45,000 images",
        ),
        "smoke": smoke({"train": 1000, "valid": 500}, steps=10, depth=1),
        "lra": Level(
            model=TINY,
            budget={
                **budget,
                "steps": 35_000,
                "batch_size": 256,
                "learning_rate": 1e-3,
                "warmup_steps": 1_750,
                "evaluate_every": 875,
            },
            options={"augment": augment},
            differs="ViT-Tiny's sizes on patches of 4 pixels, 200 epochs of 45,000 images from scratch: as many as Long Range "
            "Arena trains on such images, where ViT-Tiny was published for ImageNet",
        ),
    }
