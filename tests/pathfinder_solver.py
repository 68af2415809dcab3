"""Solution of Pathfinder by an algorithm that traces the dashes from one dot to the other."""

from __future__ import annotations

import numpy as np
from attn_zoo.tasks.parts.contours import DOT, Images, Labels
from attn_zoo.tasks.parts.stamps import PENS
from jaxtyping import Bool

Masks = Bool[np.ndarray, "images side side"]


def solve(images: Images) -> Labels:
    """Return the labels of Pathfinder images: 1 if short steps over lit pixels lead from one dot to the other, else 0.

    The algorithm knows nothing about the generator of the images, except the largest gap between the dashes of a path.

    Raises:
        ValueError: an image does not have two dots.
    """
    lit, dots = images > 0, images == DOT
    start = np.zeros(dots.shape, dtype=np.bool_)
    start.reshape(len(dots), -1)[np.arange(len(dots)), dots.reshape(len(dots), -1).argmax(axis=1)] = True
    one = _reached(start & dots, dots, 1)
    other = dots & ~one
    if not (one.any(axis=(1, 2)) & other.any(axis=(1, 2))).all():
        raise ValueError("an image must have two dots, because its label says whether a path joins them")
    return (_reached(one, lit, PENS[images.shape[1]].reach) & other).any(axis=(1, 2)).astype(np.uint8)


def _reached(start: Masks, where: Masks, reach: int) -> Masks:
    """Return the pixels of ``where`` that can be reached from ``start`` by steps of at most ``reach`` rows and columns."""
    reached, before = start, 0
    while (now := int(reached.sum())) > before:
        before = now
        for axis in (1, 2):
            grown = reached.copy()
            for by in range(1, reach + 1):
                ahead, behind = [(slice(None),) * axis + (part,) for part in (slice(by, None), slice(None, -by))]
                grown[ahead] |= reached[behind]
                grown[behind] |= reached[ahead]
            reached = grown
        reached = reached & where
    return reached
