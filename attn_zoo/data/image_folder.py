"""Reader of folders of images. There is one folder per split, and it contains one folder of images per class."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from attn_zoo.contract import DamagedDataError, MissingDataError
from attn_zoo.data.cache import Arrays, cached
from attn_zoo.data.images import unpacking

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Suffixes of image files; files with other suffixes are ignored."""

PARTS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test",)}
"""Possible names of the folder of each split."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageFiles:
    """Image files with their class labels and SHA-256 digests."""

    paths: tuple[Path, ...]
    labels: Int64[np.ndarray, " images"]
    digests: UInt8[np.ndarray, "images 32"]


def find_image_folder(folder: Path) -> dict[str, Path]:
    """Return the subfolder of each split in a folder of images. If there is no subfolder ``test``, the validation images are
    returned as ``test``, and the result has no ``valid``.

    Raises:
        MissingDataError: the folder does not exist, or it lacks training or test images.
    """
    found = {part: folder / name for part, names in PARTS.items() for name in names if (folder / name).is_dir()}
    if "test" not in found and "valid" in found:
        found["test"] = found.pop("valid")
    if not {"train", "test"} <= set(found):
        there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) if folder.is_dir() else "no such folder"
        raise MissingDataError(
            f"{folder} must hold the folders train and test (or val), each with one folder of images per class; it holds "
            f"{there or 'nothing'}. To use another folder, give task.path=FOLDER"
        )
    return found


def read_image_folder(folder: Path, classes: int) -> dict[str, ImageFiles]:
    """Return the image files of each split with their labels and digests. Classes are numbered in the order of their folder names.

    Every file is read once, to compute its digest and to check that it is complete. The digests of a folder are cached until the
    name, size or modification time of a file changes.

    Args:
        classes: required number of classes.

    Raises:
        MissingDataError: the folder does not exist, or it lacks training or test images.
        DamagedDataError: an image is damaged or has more than 256 levels, a class has no image, or the number of classes is wrong.
    """
    parts = {part: _list(path) for part, path in find_image_folder(folder).items()}
    names = sorted(parts["train"])
    if len(names) != classes:
        raise DamagedDataError(
            f"{folder / 'train'} must hold {classes} folders, one per class; got {len(names)}. Give task.classes={len(names)}"
        )
    for part, found in parts.items():
        differing = sorted(set(names) ^ set(found))
        if differing:
            raise DamagedDataError(
                f"{folder}: the folders train and {part} must have the same classes, but only one of the two has the class "
                f"{differing[0]}"
            )
    return {part: _files(folder, names, found) for part, found in parts.items()}


def _list(part: Path) -> dict[str, list[Path]]:
    """Return the image paths of each class, in the order of their names."""
    found = {}
    for inside in sorted(part.iterdir()):
        if inside.is_dir() and not inside.name.startswith("."):
            found[inside.name] = sorted(path for path in inside.iterdir() if path.suffix.lower() in SUFFIXES)
            if not found[inside.name]:
                raise DamagedDataError(f"{inside} must hold an image, but no file in it ends in one of {', '.join(SUFFIXES)}")
    return found


def _files(folder: Path, names: Sequence[str], found: dict[str, list[Path]]) -> ImageFiles:
    paths = tuple(path for name in names for path in found[name])
    labels = np.repeat(np.arange(len(names)), [len(found[name]) for name in names])
    listing = hashlib.sha256(os.fsencode(folder.resolve()))  # files of another folder can have the same names, sizes and times
    for path in paths:
        state = path.stat()
        listing.update(f"{path.relative_to(folder)}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())

    def make() -> Arrays:
        return {"digests": np.stack([_digest(path) for path in paths])}

    return ImageFiles(paths, labels, cached("image-folder", {"version": 1, "files": listing.hexdigest()}, make)["digests"])


def _digest(path: Path) -> UInt8[np.ndarray, " 32"]:
    """Return the SHA-256 of an image file."""
    from PIL import Image

    with unpacking(path, "an image"):
        packed = path.read_bytes()
        with Image.open(io.BytesIO(packed)) as image:
            _require_bytes(path, image.mode)
            if not _ends_well(packed):
                image.load()  # decodes the whole image, which is slow
    return np.frombuffer(hashlib.sha256(packed).digest(), dtype=np.uint8)


def _require_bytes(path: Path, mode: str) -> None:
    """Check that levels are from 0 to 255. Pillow cuts off larger ones, so most pixels would be white."""
    if mode.startswith(("I", "F")):
        raise DamagedDataError(
            f"{path} must have levels from 0 to 255, but has 16 or 32 bits per pixel (mode {mode}). Convert it to 8 bits"
        )


def _ends_well(packed: bytes) -> bool:
    """Return True if a JPEG or PNG has its end marker, or a WebP its stated length. Return False for other formats."""
    if packed[:2] == b"\xff\xd8":
        return packed[-2:] == b"\xff\xd9"
    if packed[:4] == b"RIFF":
        return int.from_bytes(packed[4:8], "little") + 8 == len(packed)
    return packed[:4] == b"\x89PNG" and packed[-8:-4] == b"IEND"


def load_image(path: Path, side: int, crop: float) -> UInt8[np.ndarray, "3 side side"]:
    """Return an image in colour. Its shorter side is scaled to ``side / crop`` pixels, and the central square of ``side`` pixels is
    cut out.

    Raises:
        DamagedDataError: the image cannot be decoded, or has more than 256 levels.
    """
    from PIL import Image

    with unpacking(path, "an image"), Image.open(path) as image:
        _require_bytes(path, image.mode)
        colour = image.convert("RGB")
    shorter, target = min(colour.size), round(side / crop)
    width, height = (max(side, round(length * target / shorter)) for length in colour.size)
    colour = colour.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - side) // 2, (height - side) // 2
    return np.moveaxis(np.asarray(colour.crop((left, top, left + side, top + side))), 2, 0)
