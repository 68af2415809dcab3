"""Augmentation: random numbers come from the given generator alone, and each kind makes the changes that it states."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from attn_zoo.tasks.parts.augment import MARGIN, Augment, augmented, shifted, to_levels
from attn_zoo.tasks.parts.images import channel_scale

from attn_zoo import build_task
from attn_zoo.contract import Batch


def colours(channels: int = 3, count: int = 24, side: int = 16) -> tuple[Batch, torch.Tensor]:
    """Return random images, and the scale that maps levels to their standardised values."""
    levels = np.random.RandomState(0).randint(0, 256, (count, channels, side, side)).astype(np.uint8)
    scale = channel_scale(levels)
    inputs = scale[torch.arange(channels)[:, None, None], torch.from_numpy(levels).long()]
    return Batch(inputs, None, torch.arange(count)), scale


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _states() -> tuple[Any, ...]:
    arrays: Any = np.random.get_state()
    return random.getstate(), arrays[1].tolist(), arrays[2:], torch.get_rng_state().tolist()


def candidates(image: torch.Tensor, flip: bool) -> torch.Tensor:
    """Return every shift of an image by up to the margin, and with ``flip`` also the reflected shifts."""
    side = image.shape[-1]
    padded = torch.nn.functional.pad(image, (MARGIN,) * 4)
    windows = [padded[:, y : y + side, x : x + side] for y in range(2 * MARGIN + 1) for x in range(2 * MARGIN + 1)]
    return torch.stack([*windows, *(window.flip(2) for window in windows)] if flip else windows)


@pytest.mark.parametrize("flip", [False, True])
def test_shifts_and_reflections_are_all_there_are(flip):
    image = colours(count=1, side=8)[0].inputs
    made = shifted(image.expand(4000, -1, -1, -1), seeded(0), flip=flip)
    which = (made[:, None] == candidates(image[0], flip)).flatten(2).all(2)
    assert which.any(1).all(), "something else than a shift or reflection came out"
    counts = which.sum(0)
    assert (counts > 0).all() and counts.max() < 4 * counts.float().mean()


@pytest.mark.parametrize("augment", [Augment.crop, Augment.crop_flip, Augment.timm])
@pytest.mark.parametrize("channels", [1, 3])
def test_chance_comes_from_the_generator_alone(augment, channels):
    batch, scale = colours(channels)
    before = batch.inputs.clone()
    before_all = _states()
    first = augmented(batch, seeded(1), augment, scale, mirrored=True)
    assert _states() == before_all
    random.random(), np.random.rand(), torch.rand(1)
    assert torch.equal(first.inputs, augmented(batch, seeded(1), augment, scale, mirrored=True).inputs)
    assert not torch.equal(first.inputs, augmented(batch, seeded(2), augment, scale, mirrored=True).inputs)
    generator = seeded(1)
    twice = [augmented(batch, generator, augment, scale, mirrored=True).inputs for _ in range(2)]
    assert not torch.equal(*twice), "every batch is another"
    assert torch.equal(batch.inputs, before), "the batch given was changed"
    assert first.labels is batch.labels and first.inputs.shape == before.shape and first.inputs.dtype == torch.float32
    assert first.inputs.isfinite().all()


def test_timm_changes_colours_and_erases_some():
    batch, scale = colours()
    made = augmented(batch, seeded(0), Augment.timm, scale, mirrored=True).inputs
    moved = augmented(batch, seeded(0), Augment.crop_flip, scale, mirrored=True).inputs
    changed = (made != moved).flatten(1).any(1)
    assert changed.float().mean() > 0.7, "RandAugment did nothing"
    levels = scale[torch.arange(3)[:, None, None], to_levels(made, scale).long()]
    erased = ((made - levels).abs() > 1e-4).flatten(1).any(1)
    assert 0 < erased.float().mean() < 0.6, "noise is no level, so it tells which images were erased"


def test_timm_holds_out():
    """No draw raises an error: at its greatest magnitude, timm's posterising keeps zero bits, which Pillow 13 refuses."""
    batch, scale = colours(count=64, side=8)
    generator = seeded(0)
    for _ in range(30):
        augmented(batch, generator, Augment.timm, scale, mirrored=True)


def test_levels_come_back_exactly():
    levels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    scale = channel_scale(np.random.RandomState(1).randint(0, 256, (4, 3, 9, 9)).astype(np.uint8))
    values = scale[torch.arange(3)[:, None, None], levels.long()]
    assert torch.equal(to_levels(values, scale), levels)


def test_none_is_the_identity():
    batch, scale = colours()
    assert augmented(batch, seeded(0), Augment.none, scale, mirrored=True) is batch
    for name in ("cifar10", "mnist", "digits", "pixels"):
        assert build_task(name).augment(batch, seeded(0)) is batch


def test_digits_are_never_reflected():
    digits: Any = build_task("mnist", augment="timm")
    assert digits.mirrored is False
    batch, scale = colours(channels=1, count=1, side=8)
    many = batch._replace(inputs=batch.inputs.expand(300, -1, -1, -1))
    made = augmented(many, seeded(0), Augment.crop_flip, scale, mirrored=False).inputs
    assert (made[:, None] == candidates(batch.inputs[0], flip=False)).flatten(2).all(2).any(1).all()
