"""The Pathfinder files that Long Range Arena released: folders of PNG images, and lists of their labels."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from attn_zoo.contract import DamagedDataError, DataSet, Layout, MissingDataError
from attn_zoo.data import reading

SIDES = (32, 64, 128, 256)
LEVELS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}
"""Folder of each level of difficulty. A key is the number of dashes of a long path; an image has two such paths."""

Labelled = tuple[UInt8[np.ndarray, "images side side"], UInt8[np.ndarray, " images"]]


@dataclass(frozen=True, slots=True)
class Release:
    """Released Pathfinder images of one size. File names and labels are in memory; ``read`` reads the pixels."""

    folder: Path
    side: int
    listed: dict[int, list[tuple[Path, int]]]
    """Image files and their labels. A key is the number of dashes of a long path in the image."""

    def level(self, contour: int) -> Path:
        """Return the folder of the images whose long paths have ``contour`` dashes.

        Raises:
            MissingDataError: the release has no folder for this number of dashes.
        """
        if contour not in self.listed:
            raise MissingDataError(
                f"LRA Pathfinder-{self.side}: {self.folder} has no folder {LEVELS[contour]}, which must hold the images "
                f"whose long paths have {contour} dashes; unpack it from lra_release, or ask for "
                f"contour={' or '.join(map(str, self.listed))}"
            )
        return self.folder / LEVELS[contour]

    def read(self, contour: int) -> Labelled:
        """Return the images whose long paths have ``contour`` dashes, and their labels. Files that are empty in the release are
        left out.

        Raises:
            MissingDataError: the release has no folder for this number of dashes.
            DamagedDataError: a file is not a grey image of the right size.
        """
        self.level(contour)
        kept = [(path, label) for path, label in self.listed[contour] if path.stat().st_size]
        images = np.zeros((len(kept), self.side, self.side), dtype=np.uint8)
        for at, (path, _) in enumerate(kept):
            images[at] = _image(path, self.side)
        return images, np.array([label for _, label in kept], dtype=np.uint8)

    def read_images(self) -> None:
        """Read all images that are not empty, to check them.

        Raises:
            DamagedDataError: a file is not a grey image of the right size.
        """
        for images in self.listed.values():
            for path, _ in images:
                if path.stat().st_size:
                    _image(path, self.side)


def read_release(side: int, paths: Sequence[Path]) -> Release:
    """Read the lists of labels in a released folder such as ``pathfinder32``. ``side`` is the side of an image in pixels.

    Raises:
        DamagedDataError: the folder has none of the subfolders in ``LEVELS``, a list of labels cannot be read, or a list names a
            missing file.
    """
    (folder,) = paths
    listed = {contour: _listed(folder / name) for contour, name in LEVELS.items() if (folder / name).exists()}
    if not listed:
        raise DamagedDataError(f"{folder} must hold at least one of the folders {', '.join(LEVELS.values())}")
    return Release(folder, side, listed)


def _listed(level: Path) -> list[tuple[Path, int]]:
    """Return images and labels from the lists of a level, in the order of the lists' numbers."""
    lists = [path for path in (level / "metadata").glob("*.npy") if path.stem.isdecimal()]
    if not lists:
        raise DamagedDataError(f"{level / 'metadata'} must hold lists named 0.npy, 1.npy and so on, and holds none")
    images = []
    existing: dict[str, set[str]] = {}
    for path in sorted(lists, key=lambda path: int(path.stem)):
        for number, row in enumerate(_rows(path), 1):
            if len(row) < 4 or row[3] not in ("0", "1"):
                raise DamagedDataError(
                    f"{path}, row {number} must hold a folder, a file, a number and a label of 0 or 1; got {' '.join(row)[:60]!r}"
                )
            place, name = row[:2]
            if place not in existing:
                existing[place] = set(os.listdir(level / place)) if (level / place).is_dir() else set()
            if name not in existing[place]:
                raise DamagedDataError(f"the file {level / place / name} does not exist, but row {number} of {path} names it")
            images.append((level / place / name, int(row[3])))
    return images


def _rows(path: Path) -> Iterator[list[str]]:
    """Return the rows of a list, which is text although its suffix is .npy."""
    with reading(path, "a list of images, one per line"):
        yield from (line.split() for line in path.read_text(encoding="utf-8").splitlines())


def _image(path: Path, side: int) -> UInt8[np.ndarray, "side side"]:
    from PIL import Image

    with reading(path, f"a grey PNG of {side} x {side} pixels"), Image.open(path) as image:
        if image.size != (side, side) or image.mode not in ("L", "RGB"):
            raise DamagedDataError(
                f"{path} must be a grey image of {side} x {side} pixels; got mode {image.mode} and {image.width} x {image.height} "
                "pixels"
            )
        return np.asarray(image.convert("L"), dtype=np.uint8)


def _data_set(side: int) -> DataSet[Release]:
    name = f"pathfinder{side}"
    return DataSet(
        name=name,
        title=f"LRA Pathfinder-{side}",
        source="Tay et al. 2020, Long Range Arena; drawn by the program of Linsley et al. 2018 and Kim et al. 2020",
        licence="none given for the files",
        layouts=(
            Layout(
                "Long Range Arena's release",
                ((f"lra_release/{name}", f"lra_release/lra_release/{name}", name),),
                partial(read_release, side),
                read_rest=Release.read_images,
            ),
        ),
        obtain=f"Unpack {name} of lra_release.gz, named at https://github.com/google-research/long-range-arena, into the data "
        "folder; no library fetches it",
    )


PATHFINDER = {side: _data_set(side) for side in SIDES}
"""Pathfinder data sets of Long Range Arena. A key is the side of the images in pixels."""
