"""Readers of published image data sets: idx files, .npz files, and CIFAR's binary version. No pickle file is loaded."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray

from attn_zoo.contract import DamagedDataError
from attn_zoo.data.files import read_bytes, reading


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Images as pixel values from 0 to 255, with their class labels."""

    levels: UInt8[np.ndarray, "images channels height width"]
    labels: Int64[np.ndarray, " images"]


@dataclass(frozen=True, slots=True, eq=False)
class ImageSplits:
    """The published training and test splits of an image data set."""

    train: Images
    test: Images


@dataclass(frozen=True, slots=True)
class Expected:
    """Sizes that an image data set must have.

    Args:
        train, test: number of images; 0 for any number.
        channels, height, width: shape of an image.
        classes: number of classes.
    """

    train: int
    test: int
    channels: int
    height: int
    width: int
    classes: int

    @property
    def image(self) -> tuple[int, int, int]:
        """Shape of one image: channels, height and width."""
        return self.channels, self.height, self.width


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the array in an idx file, which may be compressed with gzip. Its shape must be ``shape``.

    Raises:
        DamagedDataError: the file is truncated, or is not an idx file of this shape.
    """
    raw = read_bytes(path)
    head = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
    if raw[: len(head)] != head:
        raise DamagedDataError(
            f"{path} must begin with the header of {path.name} (unsigned bytes of shape {shape}), but begins with other bytes"
        )
    body = np.frombuffer(raw, dtype=np.uint8, offset=len(head))
    if len(body) != prod(shape):
        raise DamagedDataError(f"{path} must hold {prod(shape)} values, but holds {len(body)}; it is truncated or too long")
    return body.reshape(shape)


def read_idx_files(paths: Sequence[Path], expected: Expected) -> ImageSplits:
    """Return the images and labels in four idx files. The images have one channel.

    Args:
        paths: training images, training labels, test images, test labels.

    Raises:
        DamagedDataError: a file is truncated, is not an idx file of the required shape, or holds a label out of range.
    """
    parts = []
    for at, count in ((0, expected.train), (2, expected.test)):
        levels = read_idx(paths[at], (count, expected.height, expected.width))
        parts.append(_images(levels[:, None], read_idx(paths[at + 1], (count,)), count, expected, paths[at], paths[at + 1]))
    return ImageSplits(*parts)


def read_npz(path: Path, expected: Expected) -> ImageSplits:
    """Return the images and labels in an .npz file. Its arrays are ``train_images``, ``train_labels``, ``test_images`` and
    ``test_labels``.

    Images are bytes of shape (images, height, width, channels), or (images, height, width) for one channel; labels are integers.
    Other arrays are ignored.

    Raises:
        DamagedDataError: the file is damaged, an array is missing, or an array has a wrong shape or dtype.
    """
    what = "an .npz with train_images, train_labels, test_images and test_labels"
    with unpacking(path, what), np.load(path, allow_pickle=False) as arrays:
        lacking = [f"{part}_{kind}" for part in ("train", "test") for kind in ("images", "labels")]
        lacking = [name for name in lacking if name not in arrays.files]
        if lacking:
            raise DamagedDataError(f"{path} must hold {', '.join(lacking)}; it holds {', '.join(arrays.files) or 'nothing'}")
        parts = []
        for part, count in (("train", expected.train), ("test", expected.test)):
            levels = arrays[f"{part}_images"]
            if levels.ndim == 3:
                levels = levels[..., None]
            if levels.ndim != 4:
                raise DamagedDataError(
                    f"{path}: {part}_images must have shape (images, height, width, channels); got {levels.shape}"
                )
            sources = f"{path}: {part}_images", f"{path}: {part}_labels"
            parts.append(_images(np.moveaxis(levels, 3, 1), arrays[f"{part}_labels"], count, expected, *sources))
    return ImageSplits(*parts)


def read_cifar_binary(train: Sequence[Path], test: Path, expected: Expected, label_bytes: int) -> ImageSplits:
    """Return the images and labels in the files of CIFAR's binary version. For each image, a file has one byte per label, and then
    the pixels, channel by channel.

    Args:
        train: files of the training split, in order, with equal numbers of images.
        test: file of the test split.
        label_bytes: number of label bytes per image. The last one is the class; in CIFAR-100, the first one is the superclass.

    Raises:
        DamagedDataError: a file has a wrong size, or holds a label out of range.
    """
    each = expected.train // len(train)
    parts = [_read_records(path, each, expected, label_bytes) for path in train]
    whole = Images(np.concatenate([part.levels for part in parts]), np.concatenate([part.labels for part in parts]))
    return ImageSplits(whole, _read_records(test, expected.test, expected, label_bytes))


def _read_records(path: Path, count: int, expected: Expected, label_bytes: int) -> Images:
    raw = np.frombuffer(read_bytes(path), dtype=np.uint8)
    record = label_bytes + prod(expected.image)
    if len(raw) != count * record:
        raise DamagedDataError(
            f"{path} must hold {count * record} bytes ({count} images of {record} bytes), but holds {len(raw)}; "
            f"it is {'truncated' if len(raw) < count * record else 'another file'}"
        )
    rows = raw.reshape(count, record)
    return _images(rows[:, label_bytes:].reshape(count, *expected.image), rows[:, label_bytes - 1], count, expected, path, path)


def _images(
    levels: NDArray[Any], labels: NDArray[Any], count: int, expected: Expected, of_levels: object, of_labels: object
) -> Images:
    """Check two arrays and return them as images. ``of_levels`` and ``of_labels`` name their sources in errors."""
    if levels.dtype != np.uint8:
        raise DamagedDataError(f"{of_levels} must be of type uint8, because levels are 0 to 255; got {levels.dtype}")
    count = count or len(levels)
    if levels.shape != (count, *expected.image) or not count:
        raise DamagedDataError(
            f"{of_levels} must hold {count or 'one or more'} images of shape (channels, height, width) = {expected.image}; it "
            f"holds {len(levels)} of shape {levels.shape[1:]}"
        )
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise DamagedDataError(
            f"{of_labels} must hold {count} integers in one dimension; got labels of type {labels.dtype} and shape {labels.shape}"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= expected.classes:
        wrong = low if low < 0 else high
        raise DamagedDataError(f"{of_labels}: labels must be from 0 to {expected.classes - 1}; got {wrong}")
    return Images(np.ascontiguousarray(levels), labels.astype(np.int64))


@contextmanager
def unpacking(path: Path, what: str) -> Iterator[None]:
    """Return a context in which errors of reading a file are replaced by ``DamagedDataError``. Unlike ``reading``, it also replaces
    the errors of damaged zip files and images.

    Raises:
        DamagedDataError: decompression or decoding failed.
    """
    from PIL.Image import DecompressionBombError

    try:
        with reading(path, what):
            yield
    except (zipfile.BadZipFile, struct.error, NotImplementedError, RuntimeError, SyntaxError, DecompressionBombError) as error:
        raise DamagedDataError(f"{path} is not {what}, or is damaged or cut short ({error})") from error
