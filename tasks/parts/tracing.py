"""Pathfinder solved by looking: who follows the dashes from one dot comes to the other, or does not."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

from .contours import DOT, Images, Labels
from .stamps import PENS

Masks = Bool[np.ndarray, "images side side"]


def solve(images: Images) -> Labels:
    """Labels found by looking: from one dot on to whatever is close enough, until nothing is; is the other dot among it?

    It knows nothing of how the images were drawn but how close dashes of one path are.

    Raises:
        ValueError: an image has no two dots.
    """
    lit, dots = images > 0, images == DOT
    start = np.zeros(dots.shape, dtype=np.bool_)
    start.reshape(len(dots), -1)[np.arange(len(dots)), dots.reshape(len(dots), -1).argmax(axis=1)] = True
    one = _reached(start & dots, dots, 1)
    other = dots & ~one
    if not (one.any(axis=(1, 2)) & other.any(axis=(1, 2))).all():
        raise ValueError("an image without two dots has no label")
    return (_reached(one, lit, PENS[images.shape[1]].reach) & other).any(axis=(1, 2)).astype(np.uint8)


def _reached(start: Masks, where: Masks, reach: int) -> Masks:
    """Pixels that steps of at most so many rows and columns lead to, over pixels that may be stepped on."""
    found, before = start, 0
    while (now := int(found.sum())) > before:
        before = now
        for axis in (1, 2):
            grown = found.copy()
            for by in range(1, reach + 1):
                ahead, behind = [(slice(None),) * axis + (part,) for part in (slice(by, None), slice(None, -by))]
                grown[ahead] |= found[behind]
                grown[behind] |= found[ahead]
            found = grown
        found = found & where
    return found
