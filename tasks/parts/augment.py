"""Random augmentation of training images: shifts, reflections, and timm's RandAugment with random erasing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Generator, Tensor

from attn_zoo.contract import Batch

MARGIN = 4
"""Largest shift of an image in pixels, as is usual for images of 32 pixels."""
RANDAUGMENT = "rand-m9-mstd0.5-inc1"
ERASED = 0.25
"""Share of images in which a part is erased. This share and the settings of RandAugment are those of Touvron et al. 2021,
arXiv:2012.12877, Table 9."""


class Augment(Enum):
    """Kind of random augmentation of a training image. Pixels that come from outside the image have the mean level."""

    none = "none"
    """No augmentation."""
    crop = "crop"
    """Shift by up to 4 pixels down or up, and right or left."""
    crop_flip = "crop_flip"
    """Shift, and a horizontal reflection with probability 1/2."""
    timm = "timm"
    """Shift, reflection, timm's RandAugment (two operations of magnitude 9, each with probability 1/2), and random erasing with
    probability 1/4."""


def augmented(
    batch: Batch, generator: Generator, augment: Augment, scale: Float[Tensor, "channels 256"], *, mirrored: bool
) -> Batch:
    """Return a new batch whose images are augmented at random.

    Args:
        batch: standardised images.
        generator: source of all random numbers; global generators are not changed.
        augment: kind of augmentation.
        scale: standardised value of each pixel level from 0 to 255, for each channel.
        mirrored: False if a reflection would change the class; then no image is reflected.
    """
    if augment == Augment.none:
        return batch
    inputs = shifted(batch.inputs, generator, flip=mirrored and augment != Augment.crop)
    if augment == Augment.timm:
        inputs = _by_timm(inputs, generator, scale)
    return batch._replace(inputs=inputs)


def shifted(
    images: Float[Tensor, "batch channels height width"], generator: Generator, *, flip: bool
) -> Float[Tensor, "batch channels height width"]:
    """Return the images, shifted at random by up to ``MARGIN`` pixels in each direction. Pixels from outside an image are 0. If
    ``flip`` is True, each image is also reflected with probability 1/2."""
    count, channels, height, width = images.shape
    down, right = torch.randint(2 * MARGIN + 1, (2, count, 1), generator=generator)
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    if flip:
        mirror = torch.randint(2, (count, 1), generator=generator).bool()
        columns = torch.where(mirror, columns.flip(1), columns)
    rows, columns = rows.to(images.device), columns.to(images.device)
    padded = F.pad(images, (MARGIN,) * 4)
    at = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return padded[at, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _by_timm(
    images: Float[Tensor, "batch channels height width"], generator: Generator, scale: Float[Tensor, "channels 256"]
) -> Float[Tensor, "batch channels height width"]:
    """Apply RandAugment to the levels, then random erasing to the standardised values. Both draw from global generators."""
    from PIL import Image
    from timm.data.auto_augment import rand_augment_transform
    from timm.data.random_erasing import RandomErasing

    levels = to_levels(images.cpu(), scale)
    fill = tuple(to_levels(torch.zeros(1, len(scale), 1, 1), scale).flatten().tolist())
    fill = fill if len(fill) == 3 else fill * 3
    # At a magnitude of 10 timm posterises to 0 bits, which Pillow refuses from version 13 on.
    change = rand_augment_transform(RANDAUGMENT, {"img_mean": fill, "magnitude_max": 9.99})
    erase = RandomErasing(ERASED, mode="pixel", device="cpu")
    with _global_chance(int(torch.randint(2**31, (1,), generator=generator))):
        changed_images = [np.asarray(change(Image.fromarray(_rgb(image)))) for image in levels.numpy()]
        # Grey images have equal channels.
        changed = torch.from_numpy(np.stack(changed_images)).permute(0, 3, 1, 2)[:, : images.shape[1]]
        channel = torch.arange(images.shape[1])[:, None, None]
        return erase(scale[channel, changed.long()]).to(images.device)


def to_levels(
    images: Float[Tensor, "batch channels height width"], scale: Float[Tensor, "channels 256"]
) -> UInt8[Tensor, "batch channels height width"]:
    """Return the levels, from 0 to 255, whose standardised values are nearest to those of the images."""
    low, high = scale[:, :1, None], scale[:, -1:, None]
    return ((images - low) / (high - low) * 255).round().clamp(0, 255).to(torch.uint8)


def _rgb(image: UInt8[np.ndarray, "channels height width"]) -> UInt8[np.ndarray, "height width 3"]:
    """Convert images to three channels, because timm's operations need colour."""
    return np.ascontiguousarray(np.moveaxis(np.broadcast_to(image, (3, *image.shape[1:])), 0, 2))


@contextmanager
def _global_chance(seed: int) -> Iterator[None]:
    """Return a context in which the global generators of Python, numpy and torch (on the CPU) are seeded. Afterwards they are
    restored.
    """
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed GPUs
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.default_generator.set_state(tensors)
