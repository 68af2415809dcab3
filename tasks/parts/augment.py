"""What training may do to a batch of images: shifts, reflections, and timm's RandAugment with random erasing."""

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
"""Pixels that an image is shifted by at most, as is usual for images of 32 pixels."""
RANDAUGMENT = "rand-m9-mstd0.5-inc1"
ERASED = 0.25
"""RandAugment and share of erased images after Touvron et al. 2021, arXiv:2012.12877, Table 9."""


class Augment(Enum):
    """What is done to each training image anew whenever it is drawn. What comes in at an edge is the mean level."""

    none = "none"
    """Nothing."""
    crop = "crop"
    """A shift by up to 4 pixels down or up, and right or left."""
    crop_flip = "crop_flip"
    """The same, and in one of two cases its reflection, left for right."""
    timm = "timm"
    """The same, then timm's RandAugment (two operations of magnitude 9, each in one of two cases), then a rectangle of noise in
    one of four cases."""


def augment_named(task: str, given: Augment | str) -> Augment:
    """The member of that name. Raises ValueError."""
    known = [choice.value for choice in Augment]
    if isinstance(given, Augment):
        return given
    if given not in known:
        raise ValueError(f"{task}.augment must be {', '.join(known[:-1])} or {known[-1]}; got {given!r}")
    return Augment(given)


def augmented(
    batch: Batch, generator: Generator, augment: Augment, scale: Float[Tensor, "channels 256"], *, mirrored: bool
) -> Batch:
    """A batch with its images augmented; the one given stays as it is.

    Args:
        batch: standardised images.
        generator: the only source of chance; the global ones of Python, numpy and torch are left as they were.
        scale: standardised value of each level, by channel.
        mirrored: False where a reflection would mean something else; then none is drawn, whatever ``augment`` says.
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
    """Each image shifted by up to ``MARGIN`` pixels each way, zeros coming in, and reflected at random if ``flip``."""
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
    """RandAugment on the levels, then random erasing on the standardised values, both of which draw from global generators."""
    from PIL import Image
    from timm.data.auto_augment import rand_augment_transform
    from timm.data.random_erasing import RandomErasing

    levels = to_levels(images.cpu(), scale)
    fill = tuple(to_levels(torch.zeros(1, len(scale), 1, 1), scale).flatten().tolist())
    fill = fill if len(fill) == 3 else fill * 3
    # At a magnitude of 10 timm would leave a colour 0 bits, which Pillow refuses from 13 on.
    change = rand_augment_transform(RANDAUGMENT, {"img_mean": fill, "magnitude_max": 9.99})
    erase = RandomErasing(ERASED, mode="pixel", device="cpu")
    with _global_chance(int(torch.randint(2**31, (1,), generator=generator))):
        made = [np.asarray(change(Image.fromarray(_rgb(image)))) for image in levels.numpy()]
        changed = torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)[:, : images.shape[1]]  # all three of a grey one are equal
        channel = torch.arange(images.shape[1])[:, None, None]
        return erase(scale[channel, changed.long()]).to(images.device)


def to_levels(
    images: Float[Tensor, "batch channels height width"], scale: Float[Tensor, "channels 256"]
) -> UInt8[Tensor, "batch channels height width"]:
    """The levels that standardised values stand for; the nearest, where a value is none of them."""
    low, high = scale[:, :1, None], scale[:, -1:, None]
    return ((images - low) / (high - low) * 255).round().clamp(0, 255).to(torch.uint8)


def _rgb(image: UInt8[np.ndarray, "channels height width"]) -> UInt8[np.ndarray, "height width 3"]:
    """timm's operations know colour images only."""
    return np.ascontiguousarray(np.moveaxis(np.broadcast_to(image, (3, *image.shape[1:])), 0, 2))


@contextmanager
def _global_chance(seed: int) -> Iterator[None]:
    """The global generators of Python, numpy and torch (on the CPU) seeded inside, and as they were outside."""
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPUs as well
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.default_generator.set_state(tensors)
