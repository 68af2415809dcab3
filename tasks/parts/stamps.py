"""Pixel patterns of dashes and dots, for every direction and every position within a pixel. They are computed with integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt8

SAMPLES = 4
"""Number of samples per pixel along each axis. The grey level of a pixel is proportional to the number of its samples that a dash
or a dot covers."""
DEGREES = 5
"""Angle between neighbouring directions in degrees."""
WAYS = 360 // DEGREES

_UNIT = 4096
_FALLING = (4096, 4080, 4034, 3956, 3849, 3712, 3547, 3355, 3138, 2896, 2633, 2349, 2048, 1731, 1401, 1060, 711, 357, 0)
COSINE = (*_FALLING, *(-c for c in _FALLING[-2::-1]), *(-c for c in _FALLING[1:]), *_FALLING[-2:0:-1])
"""Cosine of each direction times 4,096. The values are constants because the last bit of ``math.cos`` depends on the machine."""
SINE = tuple(COSINE[way - WAYS // 4] for way in range(WAYS))

_FAINTEST_DASH, _FAINTEST_DOT = 6, 8
"""Smallest number of samples, out of 16, that a dash or a dot must cover to light a pixel."""


@dataclass(frozen=True, slots=True)
class Pen:
    """Sizes of the dashes and dots of Pathfinder images, in sixteenths of a pixel. Only ``reach`` and ``apart`` are in whole
    pixels. They limit the distance between dashes: the larger of the horizontal and the vertical distance."""

    length: int
    width: int
    gap: int
    radius: int
    """Radius of a dot."""
    reach: int
    """Consecutive dashes have at least 1 and fewer than ``reach`` dark pixels between them."""
    apart: int
    """Smallest number of dark pixels between dashes that are not consecutive. It is at least ``reach``, so that distances show
    which dashes are consecutive."""


PENS = {
    16: Pen(length=20, width=14, gap=16, radius=18, reach=2, apart=2),
    32: Pen(length=32, width=14, gap=18, radius=24, reach=2, apart=2),
    64: Pen(length=80, width=16, gap=24, radius=40, reach=2, apart=3),
    128: Pen(length=80, width=24, gap=40, radius=48, reach=3, apart=4),
    256: Pen(length=80, width=32, gap=56, radius=80, reach=4, apart=6),
}
"""Sizes of dashes and dots. A key is the side of the image in pixels. From a side of 32 on, dashes and dots are similar to those of
the Long Range Arena files."""


class Mark(NamedTuple):
    """Dash or dot at a place of the canvas."""

    x: int
    """Horizontal position of the centre in samples; ``y`` is its vertical position."""
    y: int
    way: int
    """Direction; for a dot, the direction of the path's end."""
    stamp: int
    shift: int
    """Bit number of the stamp's first pixel on the canvas. The stamp is the pixel pattern of the dash or dot."""
    lit: int
    """Lit pixels as bits of an integer; bit 0 is the first pixel of the stamp."""


class Stamp(NamedTuple):
    """Pixel pattern of a dash or a dot, without a place."""

    lit: int
    wide: int
    """Pixels that other paths must avoid, as bits: all pixels within ``Pen.apart`` of a lit pixel. The first pixel of the stamp is
    bit number ``Stamps.lead``."""
    cover: UInt8[np.ndarray, "size size"]
    """Number of lit samples of each pixel, out of 16."""


class Stamps:
    """All pixel patterns of dashes and dots for Pathfinder images of one size. A set of pixels is an integer with one bit per
    pixel of a canvas. A canvas is the image with a margin around it.

    Args:
        side: side of the image in pixels.
        bend: largest turn between consecutive dashes, in units of ``DEGREES`` (5 degrees).
    """

    def __init__(self, side: int, bend: int) -> None:
        self.side, self.pen, self.bend = side, PENS[side], bend
        self.half = max((self.pen.length + self.pen.width) // 2, self.pen.radius) // 16 + 1
        self.size = 2 * self.half + 1
        self.margin = self.half + self.pen.apart + (self.pen.length + self.pen.gap) // 16 + 2
        self.stride = side + 2 * self.margin
        self.lead = self.pen.apart * (self.stride + 1)
        self.all = [*self._dashes(), *self._dots()]
        row = ((1 << side) - 1) << self.margin
        self.outside = ((1 << self.stride**2) - 1) ^ sum(row << (self.margin + y) * self.stride for y in range(side))
        """Mask of the margin around the image."""
        self._next: dict[tuple[int, int, int], list[Mark]] = {}

    def dash(self, x: int, y: int, way: int) -> Mark:
        """Return a dash with its centre at (x, y) and the direction ``way``."""
        return self._mark(x, y, way, way % (WAYS // 2) * SAMPLES**2)

    def dot(self, last: Mark) -> Mark:
        """Return a dot on the outer end of the last dash of a path."""
        x = last.x + _samples(self.pen.length * COSINE[last.way])
        y = last.y + _samples(self.pen.length * SINE[last.way])
        return self._mark(x, y, last.way, WAYS // 2 * SAMPLES**2)

    def wide(self, mark: Mark) -> int:
        """Return the set of pixels that other paths must avoid because of a dash or a dot."""
        return self.all[mark.stamp].wide << mark.shift - self.lead

    def next(self, mark: Mark) -> list[Mark]:
        """Return the dashes that may follow the dash ``mark``, with positions relative to it. They are ordered by turn, from the
        sharpest turn to one side to the sharpest turn to the other side."""
        key = mark.x % SAMPLES, mark.y % SAMPLES, mark.way
        if key not in self._next:
            start = self.margin * SAMPLES
            self._next[key] = list(self._follow(self.dash(start + key[0], start + key[1], mark.way)))
        return self._next[key]

    def _mark(self, x: int, y: int, way: int, first: int) -> Mark:
        stamp = first + y % SAMPLES * SAMPLES + x % SAMPLES
        shift = (y // SAMPLES - self.half) * self.stride + x // SAMPLES - self.half
        return Mark(x, y, way, stamp, shift, self.all[stamp].lit)

    def _follow(self, mark: Mark) -> Iterator[Mark]:
        """Yield the next dash in each direction. Of all gaps within ``Pen.reach``, it has the one that is nearest to
        ``Pen.gap``."""
        lit = mark.lit << mark.shift
        touching, close = _grown(lit, 1, self.stride), _grown(lit, self.pen.reach, self.stride)
        for way in ((mark.way + bend) % WAYS for bend in range(-self.bend, self.bend + 1)):
            for stretch in (0, -2, 2, -4, 4):
                step = self.pen.length + self.pen.gap + stretch
                dx, dy = (_samples(step * (wave[mark.way] + wave[way])) for wave in (COSINE, SINE))
                other = self.dash(mark.x + dx, mark.y + dy, way)
                pixels = other.lit << other.shift
                if pixels & close and not pixels & touching:
                    yield Mark(dx, dy, way, other.stamp, other.shift - mark.shift, other.lit)
                    break

    def _dashes(self) -> Iterator[Stamp]:
        length, width = self.pen.length * _UNIT // 2, self.pen.width * _UNIT // 2
        for c, s in zip(COSINE[: WAYS // 2], SINE, strict=False):
            for y, x in self._grids():
                yield self._stamp((abs(x * c + y * s) <= length) & (abs(y * c - x * s) <= width), _FAINTEST_DASH)

    def _dots(self) -> Iterator[Stamp]:
        for y, x in self._grids():
            yield self._stamp(x * x + y * y <= self.pen.radius**2, _FAINTEST_DOT)

    def _grids(self) -> Iterator[tuple[Int[np.ndarray, "samples 1"], Int[np.ndarray, "1 samples"]]]:
        """Return the offsets of a stamp's samples from its centre, in sixteenths of a pixel, for each position of the centre in a
        pixel.
        """
        unit = 16 // SAMPLES
        line = np.arange(self.size * SAMPLES, dtype=np.int64) * unit - self.half * 16
        for place in range(SAMPLES**2):
            y, x = divmod(place, SAMPLES)
            yield (line - y * unit)[:, None], (line - x * unit)[None, :]

    def _stamp(self, samples: Bool[np.ndarray, "samples samples"], faintest: int) -> Stamp:
        cover = samples.reshape(self.size, SAMPLES, self.size, SAMPLES).sum(axis=(1, 3)).astype(np.uint8)
        cover[cover < faintest] = 0
        lit = sum(1 << int(y) * self.stride + int(x) for y, x in zip(*cover.nonzero(), strict=True))
        return Stamp(lit, _grown(lit << self.lead, self.pen.apart, self.stride), cover)


def _samples(length: int) -> int:
    """Return half of a length, given in sixteenths of a pixel times ``_UNIT``, rounded to samples."""
    unit = 2 * _UNIT * 16 // SAMPLES
    return (length + unit // 2) // unit


def _grown(lit: int, reach: int, stride: int) -> int:
    """Extend a set of pixels by ``reach`` along rows and columns."""
    for unit in (1, stride):
        for _ in range(reach):
            lit |= lit << unit | lit >> unit
    return lit
