"""CIFAR-100: 32 × 32 colour images of a hundred classes, cut into patches."""

from __future__ import annotations

from dataclasses import dataclass

from attn_zoo.registry import register_task

from .datasets.images import CIFAR100, EXPECTED
from .parts.images import PublishedOptions, PublishedTask, patch_levels, require_options


@dataclass
class Options(PublishedOptions):
    """Options of the task ``cifar100``."""

    patch: int = 4
    """Side of a patch in pixels: 1, 2, 4 or 8."""

    def __post_init__(self) -> None:
        require_options("cifar100", self, EXPECTED["cifar100"], patches=(1, 2, 4, 8))


@register_task(
    "cifar100",
    title="CIFAR-100 (patches)",
    version="1",
    summary="Classify 32 x 32 colour images as patches in a timm VisionTransformer; a hundred classes.",
    source=CIFAR100.source,
    licence=CIFAR100.licence,
    options=Options,
    locations=("root",),
    levels=patch_levels("crop_flip"),
    datasets=(CIFAR100,),
)
class Cifar100(PublishedTask):
    """Classification of 32 × 32 colour images into a hundred classes.

    Source: the published images and their published split into training and test images.
    Differs: the source has no validation split. Here the validation split is taken from the training images, with the same
        proportions of classes. The images of a split are ordered by a digest of their pixels. Training images that also occur in
        the test split are left out, and so are duplicates. The test split is complete.
    """

    options: Options
    data = CIFAR100
