"""Augmentation: random numbers come from the given generator alone, and each kind makes the changes that it states."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from attn_zoo.tasks.parts.augment import MARGIN, Augment, augmented
from attn_zoo.tasks.parts.images import channel_scale

from attn_zoo import build_task
from attn_zoo.contract import Batch


def colours(channels: int = 3, count: int = 24, side: int = 16) -> Batch:
    """Return random images, with standardised levels."""
    levels = np.random.RandomState(0).randint(0, 256, (count, channels, side, side)).astype(np.uint8)
    scale = channel_scale(levels)
    inputs = scale[torch.arange(channels)[:, None, None], torch.from_numpy(levels).long()]
    return Batch(inputs, None, torch.arange(count))


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


@pytest.mark.parametrize("augment", [Augment.crop, Augment.crop_flip])
def test_shifts_and_reflections_are_all_there_are(augment):
    batch = colours(count=1, side=8)
    image = batch.inputs
    made = augmented(batch._replace(inputs=image.expand(4000, -1, -1, -1)), seeded(0), augment).inputs
    which = (made[:, None] == candidates(image[0], augment is Augment.crop_flip)).flatten(2).all(2)
    assert which.any(1).all(), "something else than a shift or reflection came out"
    counts = which.sum(0)
    assert (counts > 0).all() and counts.max() < 4 * counts.float().mean()


@pytest.mark.parametrize("augment", [Augment.crop, Augment.crop_flip])
@pytest.mark.parametrize("channels", [1, 3])
def test_chance_comes_from_the_generator_alone(augment, channels):
    batch = colours(channels)
    before = batch.inputs.clone()
    before_all = _states()
    first = augmented(batch, seeded(1), augment)
    assert _states() == before_all
    random.random(), np.random.rand(), torch.rand(1)
    assert torch.equal(first.inputs, augmented(batch, seeded(1), augment).inputs)
    assert not torch.equal(first.inputs, augmented(batch, seeded(2), augment).inputs)
    generator = seeded(1)
    twice = [augmented(batch, generator, augment).inputs for _ in range(2)]
    assert not torch.equal(*twice), "every batch is another"
    assert torch.equal(batch.inputs, before), "the batch given was changed"
    assert first.labels is batch.labels and first.inputs.shape == before.shape and first.inputs.dtype == torch.float32
    assert first.inputs.isfinite().all()


def test_none_is_the_identity():
    batch = colours()
    assert augmented(batch, seeded(0), Augment.none) is batch
    for name in ("cifar10", "mnist", "digits", "pixels"):
        assert build_task(name).augment(batch, seeded(0)) is batch


def test_digits_are_never_reflected():
    with pytest.raises(ValueError, match="digits must not be mirrored"):
        build_task("mnist", augment="crop_flip")
