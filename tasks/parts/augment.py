"""Random augmentation of training images: shifts and reflections."""

from __future__ import annotations

from enum import Enum

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from attn_zoo.contract import Batch

MARGIN = 4
"""Largest shift of an image in pixels, as is usual for images of 32 pixels."""


class Augment(Enum):
    """Kind of random augmentation of a training image. Pixels that come from outside the image have the mean level."""

    none = "none"
    """No augmentation."""
    crop = "crop"
    """Shift by up to 4 pixels down or up, and right or left."""
    crop_flip = "crop_flip"
    """Shift, and a horizontal reflection with probability 1/2."""


def augmented(batch: Batch, generator: Generator, augment: Augment) -> Batch:
    """Return a batch whose images are shifted at random by up to ``MARGIN`` pixels in each direction and, with ``crop_flip``,
    reflected with probability 1/2.

    Args:
        batch: standardised images, so that the mean level is 0.
        generator: source of all random numbers; global generators are not changed.
    """
    if augment is Augment.none:
        return batch
    images: Float[Tensor, "batch channels height width"] = batch.inputs
    count, channels, height, width = images.shape
    down, right = torch.randint(2 * MARGIN + 1, (2, count, 1), generator=generator)
    rows, columns = down + torch.arange(height), right + torch.arange(width)
    if augment is Augment.crop_flip:
        mirror = torch.randint(2, (count, 1), generator=generator).bool()
        columns = torch.where(mirror, columns.flip(1), columns)
    rows, columns = rows.to(images.device), columns.to(images.device)
    padded = F.pad(images, (MARGIN,) * 4)
    at = torch.arange(count, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return batch._replace(inputs=padded[at, channel, rows[:, None, :, None], columns[:, None, None, :]])
