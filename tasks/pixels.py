"""The image task of Long Range Arena: grey CIFAR-10 images as sequences of 1,024 pixels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8

from attn_zoo.contract import SPLITS, Examples, Level, Split, Task, TaskSpec, Tokens
from attn_zoo.data import data_root
from attn_zoo.data.images import Images, ImageSplits
from attn_zoo.registry import register_task

from .datasets.images import CIFAR10, EXPECTED
from .parts.arrays import ArrayExamples
from .parts.images import require_shares, split_images
from .parts.levels import smoke


@dataclass
class Options:
    """Options of the task ``pixels``."""

    side: int = 32
    """Side in pixels: 32, as published, or 16 or 8 for quick runs. Pixels of smaller images are means over squares."""
    train: int = 0
    """Number of training images. The first images are used; 0 means all except the validation images."""
    valid: int = 5_000
    """Number of validation images, cut from the published training split with the same proportions of classes."""
    root: str = ""
    """Data folder. An empty string means $ATTN_ZOO_DATA, or ``data`` if this variable is not set."""

    def __post_init__(self) -> None:
        if self.side not in (8, 16, 32):
            raise ValueError(f"pixels.side must be 8, 16 or 32, because it must divide the 32 pixels of an image; got {self.side}")
        require_shares("pixels", self, EXPECTED["cifar10"])


@register_task(
    "pixels",
    title="Image (pixels of CIFAR-10)",
    version="1",
    summary="Classify grey 32 x 32 images of CIFAR-10 as sequences of 1,024 pixels; ten classes.",
    source="Tay et al. 2020, arXiv:2011.04006, of " + CIFAR10.source,
    licence=CIFAR10.licence,
    options=Options,
    locations=("root",),
    levels={
        "cpu": Level(
            model={"dim": 64, "depth": 2, "heads": 2, "mlp_ratio": 2.0},
            budget={"steps": 400, "batch_size": 32, "learning_rate": 2e-3, "warmup_steps": 40, "evaluate_every": 200},
            options={"valid": 1_000},
            differs="two layers of 64 that see 12,800 images once; published are one layer of 32 and 200 epochs of 45,000",
        ),
        "smoke": smoke({"side": 8, "train": 1000, "valid": 500}, steps=10, dim=16, depth=1),
        "lra": Level(
            model={"dim": 32, "depth": 1, "heads": 1, "mlp_ratio": 2.0, "dropout": 0.3},
            budget={
                "steps": 35_000,
                "batch_size": 256,
                "learning_rate": 5e-4,
                "weight_decay": 0.0,
                "warmup_steps": 175,
                "evaluate_every": 175,
            },
            differs="published: dropout 0.2 on attention weights beside 0.3 elsewhere, none of the former here; sizes of some rows "
            "differ by a factor of four there, all rows share the Transformer's here",
        ),
    },
    datasets=(CIFAR10,),
)
class Pixels(Task):
    """Classification of images into ten classes. An image is read pixel by pixel, row after row.

    A token is the grey level of a pixel plus one; token 0 is padding, which does not occur. The grey level is the luma of ITU-R
    BT.601, computed with integers as in Pillow's mode ``L``.

    Source: Tay et al. 2020: 45,000 training, 5,000 validation and 10,000 test images of 1,024 pixels.
    Differs: the source computes grey levels in floating point, so levels may differ by one. Its validation images are the last
        tenth of the training split in the order of TensorFlow Datasets. Here validation has equally many images of every class, and
        the images of a split are ordered by a digest of their pixels.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: one token for each pixel, namely one of 256 grey levels."""
        return TaskSpec(Tokens(257), self.options.side**2, classes=10)

    def examples(self, split: Split) -> Examples:
        """Return the images of a split, as tokens.

        Raises:
            MissingDataError: the data are missing.
            DamagedDataError: a file has a wrong content.
        """
        o = self.options
        return _splits(data_root(o.root), o.side, o.valid, o.train)[SPLITS.index(split)]


def grey(levels: UInt8[np.ndarray, "images 3 height width"]) -> UInt8[np.ndarray, "images 1 height width"]:
    """Return the grey levels of colour images: the luma of ITU-R BT.601, computed with integers as in Pillow's mode L."""
    red, green, blue = (levels[:, channel].astype(np.int32) for channel in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).astype(np.uint8)[:, None]


def means(levels: UInt8[np.ndarray, "images 1 height width"], side: int) -> UInt8[np.ndarray, "images 1 side side"]:
    """Return smaller images of ``side`` × ``side`` pixels, whose levels are means over squares of the given images. Means are
    rounded to the nearest integer, and halves up."""
    images, _, height, width = levels.shape
    if (height, width) == (side, side):
        return levels
    squares = levels.reshape(images, 1, side, height // side, side, width // side).astype(np.int64)
    pixels = (height // side) * (width // side)
    return ((2 * squares.sum(axis=(3, 5)) + pixels) // (2 * pixels)).astype(np.uint8)


@lru_cache(maxsize=2)
def _splits(root: Path, side: int, valid: int, train: int) -> tuple[ArrayExamples, ...]:
    found = CIFAR10.load(root)
    greys = ImageSplits(*(Images(means(grey(part.levels), side), part.labels) for part in (found.train, found.test)))
    parts = split_images(greys, valid, train)
    return tuple(
        ArrayExamples(torch.from_numpy(part.levels.reshape(-1, side * side).astype(np.int16) + 1), torch.from_numpy(part.labels))
        for part in parts
    )
