"""Images of any .npz, cut into patches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from attn_zoo.contract import Level, MissingDataError
from attn_zoo.data.images import Expected, read_npz
from attn_zoo.registry import register_task

from .parts.augment import Augment, augment_named
from .parts.images import PatchTask, Splits, patch_levels, require_patch, split_images, standardised


@dataclass
class Options:
    """Options of image_arrays."""

    path: str = "images.npz"
    """The file, below the data folder or anywhere; it holds train_images, train_labels, test_images and test_labels."""
    title: str = "images"
    """What tables call the data."""
    channels: int = 3
    """1 or 3; this and the next three say what the file must hold."""
    height: int = 32
    width: int = 32
    classes: int = 10
    patch: int = 4
    """Pixels a side of a patch."""
    train: int = 0
    """The first so many training images only; 0 takes all that validation leaves."""
    valid: int = 1_000
    """Training images that are kept for validation, in the proportions of the classes."""
    augment: Augment = Augment.none
    """What is done to training images: none, crop, crop_flip or timm."""
    root: str = ""
    """The data folder; empty means $ATTN_ZOO_DATA, else ``data``."""

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ValueError(f"image_arrays.channels is 1 for grey or 3 for colour; got {self.channels}")
        for name, least in (("height", 2), ("width", 2), ("classes", 2), ("valid", 1), ("train", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"image_arrays.{name} is at least {least}; got {getattr(self, name)}")
        require_patch("image_arrays", self.patch, self.height, self.width)
        if not self.title.strip():
            raise ValueError("image_arrays.title names the data in tables, so it cannot be empty")
        self.augment = augment_named("image_arrays", self.augment)


@register_task(
    "image_arrays",
    title="Images of an .npz (patches)",
    version="1",
    summary="Images and labels of any .npz as patches in a timm VisionTransformer.",
    source="the user's file",
    licence="the user's",
    options=Options,
    locations=("path", "root"),
    levels={name: Level(level.model, level.budget, {}, level.differs) for name, level in patch_levels("none").items()},
)
class ImageArrays(PatchTask):
    """Which class an image is of.

    Source: whatever the file holds; results name its content by digests, and ``title`` names it for people.
    Differs: training images that stand in the test part, and all but one of equal ones, are left out;
        validation is cut from what remains. The order of all splits is that of a digest of each image.
    """

    options: Options

    @property
    def data_title(self) -> str:
        """The name that the options give."""
        return self.options.title

    @property
    def expected(self) -> Expected:
        """What the images must turn out to be, as the options say."""
        o = self.options
        return Expected(0, 0, o.channels, o.height, o.width, o.classes)

    def splits(self, root: Path) -> Splits:
        """Train, valid and test from a data folder, made once."""
        return _splits(root / Path(self.options.path).expanduser(), self.expected, self.options.valid, self.options.train)


@lru_cache(maxsize=2)
def _splits(path: Path, expected: Expected, valid: int, train: int) -> Splits:
    if not path.is_file():
        raise MissingDataError(
            f"image_arrays: there is no file {path}; put there an .npz with train_images, train_labels, test_images and "
            f"test_labels, or name another with task.path=FILE"
        )
    return standardised(split_images(read_npz(path, expected), valid, train))
