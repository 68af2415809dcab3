"""MNIST: 28 × 28 images of handwritten digits, cut into patches; read from the user's data folder."""

from __future__ import annotations

import gzip
import os
import zlib
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from attn_zoo.contract import SPLITS, Examples, Level, Patches, Split, Task, TaskSpec
from attn_zoo.registry import register_task

from .arrays import ArrayExamples, standardise

SIDE = 28
FILES = {
    "train-images-idx3-ubyte": (60_000, SIDE, SIDE),
    "train-labels-idx1-ubyte": (60_000,),
    "t10k-images-idx3-ubyte": (10_000, SIDE, SIDE),
    "t10k-labels-idx1-ubyte": (10_000,),
}
"""The four published files, plain or with .gz, and the shape that each declares."""


@dataclass
class Options:
    """Options of MNIST."""

    patch: int = 4
    """Pixels a side of a patch: 2, 4, 7 or 14, for 196, 49, 16 or 4 patches."""
    train: int = 0
    """The first so many training images only; 0 takes all that validation leaves."""
    valid: int = 5_000
    """The last so many of the published training images, kept for validation."""
    root: str = ""
    """Folder that holds ``mnist`` or torchvision's ``MNIST/raw``; empty means $ATTN_ZOO_DATA, else ``data``."""

    def __post_init__(self) -> None:
        if self.patch not in (2, 4, 7, 14):
            raise ValueError(
                f"mnist.patch must be 2, 4, 7 or 14, which divide 28 pixels into at least two patches a side; got {self.patch}"
            )
        if not 1 <= self.valid <= 30_000:
            raise ValueError(f"mnist.valid takes 1 to 30,000 of the 60,000 training images; got {self.valid}")
        if not 0 <= self.train <= 60_000 - self.valid:
            raise ValueError(
                f"mnist.train is 0 for all or at most the {60_000 - self.valid} that validation leaves; got {self.train}"
            )


@register_task(
    "mnist",
    title="MNIST (patches)",
    version="1",
    summary="28 x 28 images of handwritten digits as patches in a timm VisionTransformer; ten classes.",
    source="LeCun, Cortes and Burges 1998; the four idx files as published",
    licence="usually given as CC BY-SA 3.0",
    options=Options,
    locations=("root",),
    levels={"quick": Level(model={}, budget={"steps": 1000, "learning_rate": 2e-3})},
)
class Mnist(Task):
    """Which digit a 28 × 28 image shows.

    Source: the published files and their published split into training and test images.
    Differs: the last ``valid`` training images are kept for validation; the source has none.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """One channel, ``patch`` pixels a side."""
        return TaskSpec(Patches(1, SIDE, SIDE, self.options.patch), (SIDE // self.options.patch) ** 2, classes=10)

    def examples(self, split: Split) -> Examples:
        """All images of a split, standardised by the mean and deviation of the training pixels.

        Raises:
            FileNotFoundError: a file is missing; the message says which, where it was looked for, and what to do.
            ValueError: a file is damaged.
        """
        o = self.options
        root = Path(o.root or os.environ.get("ATTN_ZOO_DATA") or "data").expanduser()
        return _splits(root, o.train, o.valid)[SPLITS.index(split)]


@lru_cache(maxsize=2)
def _splits(root: Path, train: int, valid: int) -> tuple[ArrayExamples, ...]:
    paths = [_find(root, name) for name in FILES]
    images, labels, test_images, test_labels = (read_idx(path, shape) for path, shape in zip(paths, FILES.values(), strict=True))
    for path, found in ((paths[1], labels), (paths[3], test_labels)):
        if found.max() > 9:
            raise ValueError(f"MNIST: {path} holds the label {found.max()} where 0 to 9 belong; fetch it again")
    kept = len(images) - valid
    scaled = standardise(images[: train or kept], images[kept:], test_images)
    answers = (labels[: train or kept], labels[kept:], test_labels)
    return tuple(ArrayExamples(x[:, None], torch.from_numpy(y.astype(np.int64))) for x, y in zip(scaled, answers, strict=True))


def _find(root: Path, name: str) -> Path:
    places = [root / folder / (name + ending) for folder in ("mnist", "MNIST/raw") for ending in (".gz", "")]
    for path in places:
        if path.exists():
            return path
    raise FileNotFoundError(
        f"MNIST: {name}(.gz) is neither in {places[0].parent} nor in {places[2].parent}; put the four published idx files there, "
        f"or say where they are with task.root=FOLDER or the environment variable ATTN_ZOO_DATA"
    )


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Bytes of an idx file, checked against the shape it must have.

    Raises:
        ValueError: the file is truncated, or is not what its name says.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"MNIST: {path} cannot be unpacked ({error}); fetch it again") from error
    head = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
    if raw[: len(head)] != head:
        raise ValueError(f"MNIST: {path} does not begin as {path.name} must (unsigned bytes of shape {shape}); fetch it again")
    body = np.frombuffer(raw, dtype=np.uint8, offset=len(head))
    if len(body) != prod(shape):
        raise ValueError(f"MNIST: {path} holds {len(body)} values where {prod(shape)} belong; it is truncated, fetch it again")
    return body.reshape(shape)
