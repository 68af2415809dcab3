"""Pathfinder: grey images that are read pixel by pixel. Two dots are on the ends of one dashed path, or on ends of two paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from attn_zoo.contract import SPLITS, Batch, DamagedDataError, Examples, Level, Split, Task, TaskSpec, Tokens
from attn_zoo.data import cached, data_root, folder_digest
from attn_zoo.registry import register_task

from .datasets.pathfinder import LEVELS, PATHFINDER, SIDES, Release
from .parts.arrays import ArrayExamples
from .parts.contours import Draughtsman, Plan
from .parts.levels import smoke
from .parts.options import choice, either, require_range
from .parts.stamps import DEGREES, PENS

_VERSION = 1
_WORTH_KEEPING = 20_000_000
"""Smallest number of pixels in all splits together for which the drawn splits are cached. Drawing so many pixels is slow."""

Arrays = Mapping[str, NDArray[np.uint8]]


class Files(Enum):
    """Source of the images."""

    generated = "generated"
    """Generated images."""
    lra = "lra"
    """Files of Long Range Arena."""


@dataclass
class Options:
    """Options of the task ``pathfinder``."""

    side: int = 32
    """Side in pixels: 16, 32, 64, 128 (Path-X) or 256, for 256 to 65,536 tokens."""
    contour: int = 9
    """Number of dashes of each of the two long paths; 6, 9 and 14 are easy, intermediate and hard in Long Range Arena."""
    distractors: int = 6
    """Number of short paths beside the two long ones. A short path has a third as many dashes as a long path, but at least two.
    With ``contour=14``, the published numbers of short paths are 5 at sides 32 and 64, 8 at side 128, and 7 at side 256."""
    turn: int = 45
    """Largest turn between consecutive dashes in degrees; a multiple of five."""
    contrast: float = 1.0
    """Smallest grey level of a dash as a share of the largest; 1 for equal levels, as published."""
    train: int = 1_000
    """Number of training images. With ``files=lra``, these are the first images of the training split, which has eight tenths of
    all images."""
    valid: int = 200
    """Number of validation images. With ``files=lra``, these are the first images of the validation split, which has one tenth of
    all images."""
    test: int = 400
    """Number of generated test images. With ``files=lra``, this option is ignored: the test split has one tenth of all images."""
    data_seed: int = 0
    """Seed of the images, or of the division of ``lra`` into splits."""
    files: Files = Files.generated
    """``generated``, or ``lra`` for the files of Long Range Arena. The options ``distractors``, ``turn`` and ``contrast`` do not
    apply to these files."""
    root: str = ""
    """Data folder, which contains ``lra_release``. An empty string means $ATTN_ZOO_DATA, or ``data`` if this variable is not
    set."""

    def __post_init__(self) -> None:
        self.files = choice("pathfinder.files", self.files, Files)
        if self.side not in PENS:
            raise ValueError(f"pathfinder.side must be {either(PENS)}; got {self.side}")
        require_range("pathfinder.contour", self.contour, 3, 64, "counts dashes of a long path")
        require_range("pathfinder.distractors", self.distractors, 0, 64, "counts short paths")
        require_range("pathfinder.contrast", self.contrast, 0.1, 1, "is a share of the brightest level")
        require_range("pathfinder.turn", self.turn, 15, 90, "counts degrees")
        if self.turn % DEGREES:
            raise ValueError(f"pathfinder.turn must be a multiple of {DEGREES} degrees; got {self.turn}")
        for split in SPLITS:
            require_range(f"pathfinder.{split}", getattr(self, split), 2, 10**7, "counts images")
        require_range("pathfinder.data_seed", self.data_seed, 0, 2**32 - 1, "is a seed")
        if self.files is Files.lra and (self.side not in SIDES or self.contour not in LEVELS):
            raise ValueError(
                f"with pathfinder.files=lra, side must be {either(SIDES)}, and contour must be {either(LEVELS)}; "
                f"got side={self.side}, contour={self.contour}"
            )


@register_task(
    "pathfinder",
    title="Pathfinder",
    version="1",
    summary="Dashed curves in a grey image, read by pixels. Predict whether two dots are on the ends of one curve; two classes.",
    source="generated; after Linsley et al. 2018, arXiv:1805.08477, Kim et al. 2020, arXiv:1906.01558, and Tay et al. 2020, "
    "arXiv:2011.04006",
    licence="Apache-2.0 (generated here)",
    options=Options,
    locations=("root",),
    datasets=tuple(PATHFINDER.values()),
    levels={
        "cpu": Level(
            model={"dim": 64, "depth": 2, "heads": 2, "mlp_ratio": 2.0},
            budget={"steps": 1_000, "batch_size": 32, "learning_rate": 2e-3, "warmup_steps": 100, "evaluate_every": 250},
            options={"side": 16, "contour": 6, "distractors": 2, "turn": 60, "train": 32_000, "valid": 1_000, "test": 2_000},
            differs="images of 16 pixels a side with paths of 6 dashes in place of 32 and 14, two layers of 64 in place of one of "
            "128, a fifth of the images, each seen once; on so small images the dots alone tell more than chance",
        ),
        "smoke": smoke({"side": 16, "contour": 4, "distractors": 1, "turn": 60, "train": 300, "valid": 100, "test": 100}, depth=1),
        "lra": Level(
            model={"dim": 128, "depth": 1, "heads": 4, "mlp_ratio": 1.0, "dropout": 0.2},
            budget={
                "steps": 62_400,
                "batch_size": 512,
                "learning_rate": 1e-3,
                "weight_decay": 0.0,
                "warmup_steps": 312,
                "evaluate_every": 312,
            },
            options={"contour": 14, "distractors": 5, "train": 160_000, "valid": 20_000, "test": 20_000},
            differs="sizes of the published Transformer, whose queries, keys and values are 64 wide, here 128, and whose class is "
            "read off the mean of all positions; it drops 0.1 of its attention weights, none here; generated unless files=lra",
        ),
    },
    variants={
        "small": {"side": 16, "contour": 6, "distractors": 2, "turn": 60, "contrast": 0.5, "train": 300, "valid": 60, "test": 60},
        "lra": {"files": "lra", "contour": 14, "train": 2_000},
    },
)
class Pathfinder(Task):
    """Classification of images by the places of two dots: on both ends of one dashed path (class 1), or on ends of two paths (class
    0).

    An image has two long paths, several short ones, and two dots. Paths neither cross nor touch. A token is the grey level of a
    pixel plus one; token 0 is padding, which does not occur. Pixels are read row by row from the top.

    Source: two long dashed paths and short distractors as in Linsley et al. 2018 and Kim et al. 2020. The sizes of dashes, gaps,
        dots and distractors are those that the code of Long Range Arena uses for each size of an image.
    Differs: in the source, the two ends of one path point towards each other at typical distances, so the positions of the
        dots and the directions of the paths there predict most labels. Here images are drawn in pairs of a positive and a negative
        image. In both, the dots have about the same distance from each other and from the border, and the paths leave the dots in
        about the same directions. These cues are therefore weak; they are strongest at side 16. Consecutive dashes are at least one
        pixel nearer to each other than to any other path, so labels are unambiguous. In the source, the smallest distance is the
        same within a path and between paths. Paths are drawn in both directions from their middle, anywhere in the image. In the
        source, they are drawn from one end, near each other in the centre. Grey levels at the edges of dashes are computed from 4 ×
        4 samples per pixel; pixels with fewer than 6 covered samples stay dark. In the source, grey levels come from resampling.
        Every image has exactly ``distractors`` short paths. Side 16 is new. The published files (``files=lra``) have no splits.
        They are divided into eight tenths train, one tenth valid and one tenth test, as in Long Range Arena, but in another order
        than in TensorFlow Datasets. Images that also occur in a later split are left out.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: one token for each pixel, namely one of 256 grey levels."""
        return TaskSpec(Tokens(257), self.options.side**2, classes=2)

    def examples(self, split: Split) -> Examples:
        """Return the images of a split. All splits are computed together, once per process.

        Raises:
            MissingDataError: the files of Long Range Arena are missing.
            DamagedDataError: a file is damaged.
            ValueError: the paths do not fit into the image.
        """
        o = self.options
        sizes = (o.train, o.valid, o.test)
        if o.files is Files.lra:
            found = _published(data_root(o.root), o.side, o.contour, sizes[:2], o.data_seed)
        else:
            found = _generate(Plan(o.side, o.contour, o.distractors, o.turn, o.contrast), sizes, o.data_seed)
        return found[SPLITS.index(split)]

    @property
    def generated(self) -> bool:
        """True if the images are drawn at random, not read from files."""
        return self.options.files is not Files.lra

    @property
    def data_title(self) -> str:
        """Name of the data in tables, such as ``generated`` or ``LRA Pathfinder-32 (9 dashes)``."""
        o = self.options
        return f"{PATHFINDER[o.side].title} ({o.contour} dashes)" if o.files is Files.lra else "generated"


class Pixels(ArrayExamples):
    """Examples whose grey levels are stored as bytes. In a batch, a token is a level plus one, because 0 is padding."""

    def batch(self, indices: Any) -> Batch:
        """Return the examples with these indices, in this order."""
        levels, valid, labels = super().batch(indices)
        return Batch(levels + 1, valid, labels)


def render(ids: Int[Tensor, " length"]) -> str:
    """Return the tokens of an image as text for a terminal, with two characters per pixel."""
    side = round(len(ids) ** 0.5)
    return "\n".join("".join(2 * " .:+*#@"[(level + 41) // 43] for level in row) for row in (ids.view(side, side) - 1).tolist())


@lru_cache(maxsize=2)
def _generate(plan: Plan, sizes: tuple[int, ...], seed: int) -> tuple[Pixels, ...]:
    def make() -> dict[str, NDArray[np.uint8]]:
        draughtsman = Draughtsman(plan)
        arrays = {}
        for split, size in reversed(list(zip(SPLITS, sizes, strict=True))):  # test does not depend on the size of train
            images, labels = draughtsman.images(size, f"pathfinder {seed} {split}")
            arrays[f"{split} images"], arrays[f"{split} labels"] = images.reshape(size, -1), labels
        return arrays

    worth_keeping = sum(sizes) * plan.side**2 >= _WORTH_KEEPING
    recipe = {"version": _VERSION, "plan": plan._asdict(), "sizes": sizes, "seed": seed}
    return _as_examples(cached("pathfinder", recipe, make) if worth_keeping else make())


@lru_cache(maxsize=2)
def _published(root: Path, side: int, contour: int, sizes: tuple[int, ...], seed: int) -> tuple[Pixels, ...]:
    release = PATHFINDER[side].load(root)
    recipe = {"version": _VERSION, "files": folder_digest(release.level(contour)), "sizes": sizes, "seed": seed}
    return _as_examples(cached("pathfinder-lra", recipe, lambda: _divided(release, contour, sizes, seed)))


def _divided(release: Release, contour: int, sizes: tuple[int, ...], seed: int) -> dict[str, NDArray[np.uint8]]:
    """Return the images and labels of a level, divided into eight tenths, one and one, in random order."""
    images, labels = release.read(contour)
    if len(images) < 10:
        raise DamagedDataError(f"{release.level(contour)} must list enough images for three splits, but lists only {len(images)}")
    order = np.random.RandomState(seed).permutation(len(images))  # frozen by numpy: equal in every version
    cuts = len(images) * 8 // 10, len(images) * 9 // 10
    train, valid, test = np.split(order, cuts)
    seen: set[bytes] = set()
    arrays = {}
    for split, members, size in (("test", test, len(test)), ("valid", valid, sizes[1]), ("train", train, sizes[0])):
        fresh = [at for at in members.tolist() if images[at].tobytes() not in seen][:size]
        seen.update(images[at].tobytes() for at in fresh)
        arrays[f"{split} images"], arrays[f"{split} labels"] = images[fresh].reshape(len(fresh), -1), labels[fresh]
    return arrays


def _as_examples(arrays: Arrays) -> tuple[Pixels, ...]:
    return tuple(Pixels(*(torch.from_numpy(arrays[f"{split} {what}"]) for what in ("images", "labels"))) for split in SPLITS)
