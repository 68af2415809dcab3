"""Classification of images from any .npz file. The images are cut into patches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from attn_zoo.contract import Level, MissingDataError
from attn_zoo.data.images import Expected, read_npz
from attn_zoo.registry import register_task

from .parts.augment import Augment
from .parts.images import PatchTask, Splits, patch_levels, require_patch, split_images, standardised
from .parts.options import choice


@dataclass
class Options:
    """Options of the task ``image_arrays``."""

    path: str = "images.npz"
    """Path of the file, absolute or below the data folder. The file contains train_images, train_labels, test_images and
    test_labels."""
    title: str = "images"
    """Name of the data in tables."""
    channels: int = 3
    """Number of channels, 1 or 3. The file must match this option, ``height``, ``width`` and ``classes``."""
    height: int = 32
    """Height of an image in pixels."""
    width: int = 32
    """Width of an image in pixels."""
    classes: int = 10
    """Number of classes."""
    patch: int = 4
    """Side of a patch in pixels."""
    train: int = 0
    """Number of training images. The first images are used; 0 means all except the validation images."""
    valid: int = 1_000
    """Number of validation images, cut from the training images with the same proportions of classes."""
    augment: Augment = Augment.none
    """Augmentation of training images: none, crop or crop_flip."""
    root: str = ""
    """Data folder. An empty string means $ATTN_ZOO_DATA, or ``data`` if this variable is not set."""

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ValueError(f"image_arrays.channels must be 1 (grey) or 3 (colour); got {self.channels}")
        for name, least in (("height", 2), ("width", 2), ("classes", 2), ("valid", 1), ("train", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"image_arrays.{name} must be at least {least}; got {getattr(self, name)}")
        require_patch("image_arrays", self.patch, self.height, self.width)
        if not self.title.strip():
            raise ValueError("image_arrays.title must not be empty, because tables show it")
        self.augment = choice("image_arrays.augment", self.augment, Augment)


@register_task(
    "image_arrays",
    title="Images of an .npz (patches)",
    version="1",
    summary="Classify the images of any .npz file, as patches in a timm VisionTransformer.",
    source="the user's file",
    licence="the user's",
    options=Options,
    locations=("path", "root"),
    levels={name: Level(level.model, level.budget, {}, level.differs) for name, level in patch_levels("none").items()},
)
class ImageArrays(PatchTask):
    """Classification of the images that an .npz file contains.

    Source: the file of the user. Results identify its content by digests.
    Differs: training images that occur in the test split are left out, and so are duplicates. The validation images are cut from
        the other training images. The images of a split are ordered by a digest of their pixels.
    """

    options: Options

    @property
    def data_title(self) -> str:
        """Value of the option ``title``."""
        return self.options.title

    @property
    def expected(self) -> Expected:
        """Shape of an image and number of classes, as the options define them."""
        o = self.options
        return Expected(0, 0, o.channels, o.height, o.width, o.classes)

    def splits(self, root: Path) -> Splits:
        """Return the train, valid and test examples, read from the data folder ``root``. They are cached."""
        return _splits(root / Path(self.options.path).expanduser(), self.expected, self.options.valid, self.options.train)


@lru_cache(maxsize=2)
def _splits(path: Path, expected: Expected, valid: int, train: int) -> Splits:
    if not path.is_file():
        raise MissingDataError(
            f"image_arrays: the file {path} does not exist. Put an .npz file with train_images, train_labels, test_images and "
            "test_labels there, or name another file with task.path=FILE"
        )
    return standardised(split_images(read_npz(path, expected), valid, train))
