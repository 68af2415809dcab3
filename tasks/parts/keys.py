"""Keys for frames: vectors of -1 and 1 that are new in every example."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int

from .generated import subsets


def shared_keys(
    random: np.random.RandomState, rows: int, length: int, marked: int, channels: int
) -> tuple[Int[np.ndarray, "rows length channels"], Bool[np.ndarray, "rows length"]]:
    """Return randomly drawn keys for ``rows`` examples of ``length`` frames. Random earlier frames (``marked`` is their number)
    have the key of the last frame. Every other key occurs once.

    Returns:
        The keys, and a mask of the frames that have the key of the last frame, including this frame.
    """
    codes = subsets(random, rows, length - marked, 2**channels)
    is_marked = np.zeros((rows, length), dtype=np.bool_)
    np.put_along_axis(is_marked, subsets(random, rows, marked, length - 1), True, axis=1)
    is_marked[:, -1] = True
    placed = np.empty((rows, length), dtype=np.int64)
    placed[~is_marked] = codes[:, 1:].ravel()  # row by row, in order
    placed[is_marked] = np.repeat(codes[:, 0], marked + 1)
    return 2 * (placed[:, :, None] >> np.arange(channels) & 1) - 1, is_marked
