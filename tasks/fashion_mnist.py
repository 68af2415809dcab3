"""Fashion-MNIST: 28 × 28 grey images of ten kinds of clothes, cut into patches; read from the user's data folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from attn_zoo.data.images import Expected
from attn_zoo.registry import register_task

from .datasets.images import EXPECTED, FASHION_MNIST
from .parts.augment import Augment
from .parts.images import PatchTask, Splits, patch_levels, require_options, split_images, standardised


@dataclass
class Options:
    """Options of Fashion-MNIST."""

    patch: int = 4
    """Pixels a side of a patch: 2, 4, 7 or 14, for 196, 49, 16 or 4 patches."""
    train: int = 0
    """The first so many training images only; 0 takes all that validation leaves."""
    valid: int = 5_000
    """Images of the published training part that are kept for validation, in the proportions of the classes."""
    augment: Augment = Augment.none
    """What is done to training images: none, crop, crop_flip or timm."""
    root: str = ""
    """Folder that holds ``fashion-mnist`` or ``FashionMNIST/raw``; empty means $ATTN_ZOO_DATA, else ``data``."""

    def __post_init__(self) -> None:
        require_options("fashion_mnist", self, EXPECTED["fashion_mnist"], patches=(2, 4, 7, 14))


@register_task(
    "fashion_mnist",
    title="Fashion-MNIST (patches)",
    version="1",
    summary="28 x 28 grey images of clothes as patches in a timm VisionTransformer; ten classes.",
    source=FASHION_MNIST.source,
    licence=FASHION_MNIST.licence,
    options=Options,
    locations=("root",),
    levels=patch_levels("crop_flip", epochs=6),
    datasets=(FASHION_MNIST,),
)
class FashionMnist(PatchTask):
    """Which of ten kinds of clothes a 28 × 28 image shows.

    Source: the published files and their published split into training and test images.
    Differs: the source has no validation split; here ``valid`` training images are kept for it, in
        the proportions of the classes. All splits are in an order of our own, that of a digest of each image.
    """

    options: Options

    @property
    def expected(self) -> Expected:
        """What the images must turn out to be."""
        return EXPECTED["fashion_mnist"]

    def splits(self, root: Path) -> Splits:
        """Train, valid and test from a data folder, made once."""
        return _splits(root, self.options.valid, self.options.train)


@lru_cache(maxsize=2)
def _splits(root: Path, valid: int, train: int) -> Splits:
    return standardised(split_images(FASHION_MNIST.load(root), valid, train))
