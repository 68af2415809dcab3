"""Lengths, numbers of heads and head widths at which checks run. They are drawn at random, once per mechanism and version of
attn-zoo."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version

BORDERS = (63, 64, 65, 127, 128, 129)
"""Lengths at and next to usual block sizes. Every mechanism is checked at these lengths."""

CUTS = (1, *BORDERS, 255, 256, 257, 511, 512, 513, 1023, 1024)
"""Positions at which checks cut a sequence, at and next to the ends of usual blocks."""

MANY_HEADS = 8
"""Number of heads at one short length. At all other lengths, there are at most three."""

ACROSS = (9, 65)
"""Numbers of queries in checks of cross-attention. The number of keys is different."""


@dataclass(frozen=True, slots=True)
class Size:
    """Number of positions, number of heads and width of a head in one call."""

    length: int
    heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """All sizes at which the checks of one mechanism run."""

    entry: str
    version: str
    all: tuple[Size, ...]
    """Sizes, the shortest first. Their lengths are 1, 2, ``BORDERS``, three drawn numbers (odd, even, a power of two), and the
    properties ``blocks``, ``long`` and ``longest``."""

    @property
    def blocks(self) -> int:
        """Length that spans several blocks but is not a multiple of any block size: an odd number from 291 to 319."""
        return self.all[-3].length

    @property
    def long(self) -> int:
        """Length beyond 512 tokens: a number from 680 to 719."""
        return self.all[-2].length

    @property
    def longest(self) -> int:
        """Largest length: a number from 1,025 to 1,090."""
        return self.all[-1].length

    def of_variant(self, variant: str) -> tuple[Size, ...]:
        """Return the sizes for a variant (a set of options): all sizes below 63 tokens, the size at length ``Sizes.blocks``, and
        two sizes at lengths in ``BORDERS``, one near 64 and one near 128. The variant's name decides which two.
        """
        digest = hashlib.sha256(f"{self.entry} {variant} {self.version}".encode()).digest()
        half = len(BORDERS) // 2
        drawn = {BORDERS[digest[0] % half], BORDERS[half + digest[1] % half], self.blocks}
        return tuple(size for size in self.all if size.length < min(BORDERS) or size.length in drawn)

    def __str__(self) -> str:
        lengths = ", ".join(str(size.length) for size in self.all)
        widths = ", ".join(str(width) for width in sorted({size.head_dim for size in self.all}))
        return f"sizes drawn from {self.entry!r} and version {self.version}: lengths {lengths}; head widths {widths}"


@lru_cache
def drawn_sizes(entry: str) -> Sizes:
    """Return the random sizes for the checks of a mechanism. The seed depends on the mechanism's name and the version of
    attn-zoo."""
    number = version("attn-zoo")
    digest = hashlib.sha256(f"{entry} {number}".encode()).digest()
    dice = random.Random(int.from_bytes(digest[:8], "big"))
    odd, even, power = dice.choice((3, 5, 7, 9, 11, 13)), dice.choice((6, 10, 12, 14, 18, 20)), dice.choice((4, 8, 16, 32))
    far = dice.randrange(291, 320, 2), dice.randrange(680, 720), dice.randrange(1025, 1091)
    lengths = sorted({1, 2, odd, even, power, *BORDERS, *far})
    widths = [dice.choice((5, 7, 9, 11, 13, 15)), dice.choice((33, 63, 65, 127)), dice.choice((10, 12, 24, 48, 96)), 64, 128]
    dice.shuffle(widths)
    sizes = []
    for place, length in enumerate(lengths):
        near = length <= max(BORDERS)
        width = widths[place % len(widths)] if near else dice.choice((8, 9, 12, 16))
        heads = dice.choice((1, 2, 3)) if near else 1
        sizes.append(Size(length, MANY_HEADS if length == power else heads, width))
    return Sizes(entry, number, tuple(sizes))
