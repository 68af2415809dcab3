"""Classification of images in one folder per class, as in ImageNet. The images are cut into patches."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attn_zoo.contract import Batch, Examples, Level
from attn_zoo.data.image_folder import ImageFiles, load_image, read_image_folder
from attn_zoo.data.images import Expected
from attn_zoo.registry import register_task

from .parts.augment import Augment
from .parts.division import Division, Row, divide, hashed_order
from .parts.images import TINY, PatchTask, Splits, require_patch
from .parts.levels import smoke
from .parts.options import choice

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of the red, green and blue channels of ImageNet. They are commonly used for photographs."""


@dataclass
class Options:
    """Options of the task ``image_folder``."""

    path: str = "images"
    """Path of the folder, absolute or below the data folder. It contains the folders train and test (or val), each with one folder
    per class."""
    title: str = "images"
    """Name of the data in tables."""
    classes: int = 1_000
    """Number of classes. Each split must have one folder per class; ImageNet has 1,000."""
    side: int = 224
    """Side in pixels to which each image is scaled."""
    crop: float = 0.875
    """Share of the shorter side that remains after the central crop."""
    patch: int = 16
    """Side of a patch in pixels."""
    valid: float = 0.02
    """Share of the training images that is used for validation, with the same proportions of classes. The option has no effect if
    there are folders for both validation and test."""
    augment: Augment = Augment.none
    """Augmentation of training images: none, crop or crop_flip."""
    root: str = ""
    """Data folder. An empty string means $ATTN_ZOO_DATA, or ``data`` if this variable is not set."""

    def __post_init__(self) -> None:
        for name, least in (("classes", 2), ("side", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"image_folder.{name} must be at least {least}; got {getattr(self, name)}")
        for name, most in (("crop", 1.0), ("valid", 0.5)):
            if not 0 < getattr(self, name) <= most:
                raise ValueError(f"image_folder.{name} must be above 0 and at most {most}; got {getattr(self, name)}")
        require_patch("image_folder", self.patch, self.side, self.side)
        if not self.title.strip():
            raise ValueError("image_folder.title must not be empty, because tables show it")
        self.augment = choice("image_folder.augment", self.augment, Augment)


@register_task(
    "image_folder",
    title="Image folder (patches)",
    version="1",
    summary="Classify images in one folder per class, such as ImageNet, as patches in a timm VisionTransformer.",
    source="the user's folder",
    licence="the user's",
    options=Options,
    locations=("path", "root"),
    levels={
        "cpu": Level(
            model={"dim": 96, "depth": 4, "heads": 3, "mlp_ratio": 2.0},
            budget={"steps": 2000, "batch_size": 64, "learning_rate": 1e-3, "weight_decay": 0.05, "warmup_steps": 100},
            options={"side": 64, "patch": 8, "augment": "crop_flip"},
            differs="images of 64 pixels and a network of about a seventeenth of ViT-Tiny's parameters",
        ),
        "smoke": smoke({"side": 32, "patch": 8}, steps=10, depth=1),
        "lra": Level(
            model=TINY,
            budget={
                "steps": 375_000,
                "batch_size": 1024,
                "learning_rate": 1e-3,
                "weight_decay": 0.05,
                "warmup_steps": 6_250,
                "evaluate_every": 6_250,
            },
            options={"augment": "crop_flip"},
            differs="sizes, batch, rate and 300 epochs of ImageNet after Touvron et al. 2021, arXiv:2012.12877, Table 9; no mixing "
            "of images, RandAugment, erasing, stochastic depth or smoothed labels; shifts by 4 pixels in place of random sections",
        ),
    },
)
class ImageFolder(PatchTask):
    """Classification of image files, which are in one folder per class.

    The shorter side of an image is scaled to ``side / crop`` pixels (bicubic), and the central square is cut out. Results identify
    the content of the files by digests.

    Source: the folder of the user. If it has no split ``test``, ``val`` is the test split and validation is cut from ``train``.
        This is usual for ImageNet, whose test labels are not public.
    Differs: images count as equal if the bytes of their files are equal. Training images that occur in another split are left out,
        and so are duplicates. The test split is complete.
    """

    options: Options

    @property
    def data_title(self) -> str:
        """Value of the option ``title``."""
        return self.options.title

    @property
    def expected(self) -> Expected:
        """Sizes of the images after scaling and cropping."""
        return Expected(0, 0, 3, self.options.side, self.options.side, self.options.classes)

    def splits(self, root: Path) -> Splits:
        """Return the train, valid and test examples, read from the data folder ``root``. They are cached."""
        o = self.options
        return _splits(root / Path(o.path).expanduser(), o.classes, o.valid, o.side, o.crop)


class FolderExamples(Examples):
    """Examples that are image files. The files are decoded when a batch needs them.

    Args:
        files: image files with their classes.
        at: for each example, its index in ``files``.
        side: side in pixels to which each image is scaled.
        crop: share of the shorter side that remains after the central crop.
        scale: standardised value of each pixel level from 0 to 255, for each channel.

    Raises:
        ValueError: there are no examples.
    """

    def __init__(self, files: ImageFiles, at: Sequence[int], side: int, crop: float, scale: Float[Tensor, "3 256"]) -> None:
        if not at:
            raise ValueError(
                "image_folder: every image of a split is also in another split, so no example is left. Give folders with "
                "different images"
            )
        places = np.array(at, dtype=np.int64)
        self._paths = [files.paths[place] for place in at]
        self._labels, self._digests = torch.from_numpy(files.labels[places]), files.digests[places]
        self._side, self._crop, self._scale = side, crop, scale

    def __len__(self) -> int:
        return len(self._paths)

    def batch(self, indices: Sequence[int] | Int[Tensor, " batch"]) -> Batch:
        """Return the images with these indices, in this order.

        Raises:
            DamagedDataError: a file cannot be decoded.
        """
        at = torch.as_tensor(indices)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:  # decoders release the GIL
            images = list(threads.map(lambda place: load_image(self._paths[place], self._side, self._crop), at.tolist()))
        levels = torch.from_numpy(np.stack(images)).long()
        return Batch(self._scale[torch.arange(3)[:, None, None], levels], None, self._labels[at])

    def labels(self) -> Int[Tensor, " examples"]:
        """Return the labels of all examples, in order."""
        return self._labels

    def digest(self) -> str:
        """Return the SHA-256 of the side, the crop, the digests of the files, and the labels."""
        digest = hashlib.sha256(f"image folder {self._side} {self._crop} {len(self)}".encode())
        digest.update(self._digests.tobytes())
        digest.update(self._labels.numpy().astype("<i8").tobytes())
        return digest.hexdigest()


@lru_cache(maxsize=2)
def _splits(folder: Path, classes: int, valid: float, side: int, crop: float) -> Splits:
    parts = read_image_folder(folder, classes)
    rows = {part: _rows(files) for part, files in parts.items()}
    if "valid" in parts:
        at = Division(
            divide(rows["train"], rows["test"] + rows["valid"], 0).train,
            divide(rows["valid"], rows["test"], 0).train,
            hashed_order(rows["test"]),
        )
    else:
        at = divide(rows["train"], rows["test"], max(1, round(valid * len(rows["train"]))))
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean, deviation = (torch.tensor(values, dtype=torch.float64)[:, None] for values in (MEAN, DEVIATION))
    scale = ((levels - mean) / deviation).float()
    files = (parts["train"], parts.get("valid", parts["train"]), parts["test"])
    train, held, test = (FolderExamples(own, chosen, side, crop, scale) for own, chosen in zip(files, at, strict=True))
    return train, held, test


def _rows(files: ImageFiles) -> list[Row]:
    return [(digest.tobytes(), label) for digest, label in zip(files.digests, files.labels.tolist(), strict=True)]
