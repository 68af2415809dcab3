"""Fashion-MNIST: 28 × 28 grey images of ten kinds of clothes, cut into patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attn_zoo.registry import register_task

from .datasets.images import FASHION_MNIST
from .parts.images import PublishedOptions, PublishedTask, patch_levels


@dataclass
class Options(PublishedOptions):
    """Options of the task ``fashion_mnist``."""

    root: str = ""
    """Data folder, which contains ``fashion-mnist`` or ``FashionMNIST/raw``. An empty string means $ATTN_ZOO_DATA, or ``data`` if
    this variable is not set."""

    task: ClassVar[str] = "fashion_mnist"


@register_task(
    "fashion_mnist",
    title="Fashion-MNIST (patches)",
    version="1",
    summary="Classify 28 x 28 grey images of clothes as patches in a timm VisionTransformer; ten classes.",
    source=FASHION_MNIST.source,
    licence=FASHION_MNIST.licence,
    options=Options,
    locations=("root",),
    levels=patch_levels("crop_flip", epochs=6),
    datasets=(FASHION_MNIST,),
)
class FashionMnist(PublishedTask):
    """Classification of 28 × 28 images into ten kinds of clothes.

    Source: the published files and their published split into training and test images.
    Differs: the source has no validation split. Here the validation split is taken from the training images, with the same
        proportions of classes. The images of a split are ordered by a digest of their pixels.
    """

    options: Options
    data = FASHION_MNIST
