"""Images of dashed paths that never touch, with dots on two ends. The label says whether one path joins the dots."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import product
from math import isqrt
from random import Random
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from .stamps import COSINE, DEGREES, SAMPLES, SINE, WAYS, Mark, Stamps

DOT = 255
"""Grey level of the inside of a dot. No other pixel has this level."""
BRIGHTEST = 191
"""Grey level of the brightest dash: 255 times the published factor 0.75."""

Images = UInt8[np.ndarray, "images side side"]
Labels = UInt8[np.ndarray, " images"]

_ATTEMPTS = 6
"""Number of attempts per dash of an arm (half a path) before the arm is given up. Attempts that are undone later count too."""
_WAITING = 8
"""Largest number of scenes (images with their two long paths only) of one kind that wait for a partner."""
_IN_VAIN = 20_000
"""Drawing fails after this number of consecutive scenes that complete no pair."""
_BLOCK = 1_000
"""Number of images that are drawn together. It must be even, because images are drawn in pairs."""


class Plan(NamedTuple):
    """Settings of Pathfinder images that are drawn at random."""

    side: int
    contour: int
    """Number of dashes of each of the two long paths."""
    distractors: int
    """Number of short paths. Each has a third as many dashes as a long path, but at least two."""
    turn: int
    """Largest turn between consecutive dashes in degrees."""
    contrast: float
    """Smallest grey level of a dash as a share of the largest."""


class Drawing(NamedTuple):
    """Description of one Pathfinder image before its pixels are computed: dashes with grey levels, dots, and the label."""

    dashes: list[Mark]
    levels: list[int]
    dots: tuple[Mark, Mark]
    label: int


class _Path(NamedTuple):
    dashes: list[Mark]
    ends: list[Mark]
    """Dots at the two ends."""
    taken: int
    """Mask of pixels where nothing else may be drawn."""


class _Scene:
    """Two long paths without dots."""

    def __init__(self, one: _Path, other: _Path) -> None:
        self.dashes, self.taken = one.dashes + other.dashes, other.taken
        a, b = one.ends, other.ends
        self.choices = [(1, a), (1, b), *((0, [x, y]) for x, y in product(a, b))]
        """Pairs of ends for the dots, each with its label."""
        self.used = False


class Draughtsman:
    """Generator of Pathfinder images that never draws the same image twice. Images are drawn in pairs: a positive one, in which
    both dots are on one path, and a negative one.

    In both images of a pair, the dots have about the same distance from each other and from the border, and the paths leave the
    dots in about the same directions. Without pairs, these properties would predict most labels. The two long paths of an image are
    drawn first. The image is finished only if it forms such a pair with another image.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stamps = Stamps(plan.side, plan.turn // DEGREES)
        self._seen: set[bytes] = set()
        self._waiting: dict[tuple[object, ...], list[tuple[_Scene, list[Mark]]]] = defaultdict(list)
        self._random = Random().random

    def images(self, count: int, seed: str) -> tuple[Images, Labels]:
        """Return ``count`` new images and their labels in random order. Half of the labels are 1; if ``count`` is odd, one of the
        two labels occurs once more than the other.

        Raises:
            ValueError: the paths do not fit into the image.
        """
        self._random = Random(seed).random  # Python guarantees the sequence of this method only
        places = np.arange(count)
        for at in range(count - 1, 0, -1):
            other = self._below(at + 1)
            places[[at, other]] = places[[other, at]]
        images = np.zeros((count, self.plan.side, self.plan.side), dtype=np.uint8)
        labels = np.zeros(count, dtype=np.uint8)
        for start in range(0, count, _BLOCK):
            drawings = self.draw(min(_BLOCK, count - start))
            rows = places[start : start + _BLOCK]
            images[rows], labels[rows] = self.render(drawings), [drawing.label for drawing in drawings]
        return images, labels

    def draw(self, count: int) -> list[Drawing]:
        """Return the descriptions of ``count`` new images. They are drawn in pairs: a positive and a negative one.

        Raises:
            ValueError: the paths do not fit into the image.
        """
        drawings: list[Drawing] = []
        failures = 0
        while len(drawings) < count:
            pair = self._pair()
            drawings += pair
            failures = 0 if pair else failures + 1
            if failures == _IN_VAIN:
                raise ValueError(
                    f"{self.plan} leaves too little room for the paths. Ask for fewer or shorter paths, a larger turn, or a "
                    "larger side"
                )
        return drawings[:count]

    def _below(self, bound: int) -> int:
        return int(self._random() * bound)

    def _pair(self) -> list[Drawing]:
        """Draw a scene. If it forms a pair with a waiting one, return a positive and a negative, else let it wait."""
        one = self._path(self.plan.contour, self.stamps.outside, dotted=True)
        other = self._path(self.plan.contour, one.taken, dotted=True) if one else None
        if one is None or other is None:
            return []
        scene = _Scene(one, other)
        first = self._below(len(scene.choices))
        kinds = [(label, ends, self._kind(*ends)) for label, ends in scene.choices[first:] + scene.choices[:first]]
        for label, ends, kind in kinds:
            waiting = self._waiting[(*kind, 1 - label)]
            while waiting:
                twin, dots = waiting.pop()
                if not twin.used:
                    twin.used = True
                    return self._finished((scene, ends, label), (twin, dots, 1 - label))
        for label, ends, kind in kinds:
            waiting = self._waiting[(*kind, label)]
            if len(waiting) < _WAITING:
                waiting.append((scene, ends))
        return []

    def _kind(self, one: Mark, other: Mark) -> tuple[object, ...]:
        """Return the properties that the images of a pair share. They do not depend on the order of the dots or on reflections."""
        side = self.plan.side * SAMPLES
        dx, dy = other.x - one.x, other.y - one.y
        far = isqrt(dx**2 + dy**2) * 16 // side
        looks = (_sector(one.way, dx, dy), _sector(other.way, -dx, -dy))
        looks = min(looks, looks[::-1], (-looks[0], -looks[1]), (-looks[1], -looks[0]))
        near = sorted(self._near(mark) for mark in (one, other))
        return far, looks, *near

    def _near(self, mark: Mark) -> int:
        """Return the distance between a mark and the border in sixteenths of a side, at most four."""
        side, start = self.plan.side * SAMPLES, self.stamps.margin * SAMPLES
        gaps = (mark.x - start, mark.y - start, start + side - mark.x, start + side - mark.y)
        return min(min(gaps) * 16 // side, 4)

    def _finished(self, *scenes: tuple[_Scene, list[Mark], int]) -> list[Drawing]:
        """Add short paths, grey levels and dots to scenes. Return no drawing if one lacks room or was drawn before."""
        drawings = []
        for scene, (first, second), label in scenes:
            dashes, taken = list(scene.dashes), scene.taken
            for _ in range(self.plan.distractors):
                path = next(filter(None, (self._path(max(2, self.plan.contour // 3), taken) for _ in range(60))), None)
                if path is None:
                    return []
                dashes, taken = dashes + path.dashes, path.taken
            share = self.plan.contrast
            levels = [int(BRIGHTEST * (share + (1 - share) * self._random())) for _ in dashes]
            drawings.append(Drawing(dashes, levels, (first, second), label))
        keys = [self._key(drawing) for drawing in drawings]
        if self._seen.intersection(keys):
            return []
        self._seen.update(keys)
        return drawings

    def _key(self, drawing: Drawing) -> bytes:
        canvas = 0
        for mark in (*drawing.dashes, *drawing.dots):
            canvas |= mark.lit << mark.shift
        return blake2b(canvas.to_bytes((self.stamps.stride**2 + 7) // 8, "little"), digest_size=16).digest()

    def _path(self, count: int, taken: int, dotted: bool = False) -> _Path | None:
        """Draw a path in both directions from a dash in its middle. Return None if it does not fit."""
        side, start = self.plan.side * SAMPLES, self.stamps.margin * SAMPLES
        way = self._below(WAYS)
        middle = self.stamps.dash(start + self._below(side), start + self._below(side), way)
        if middle.lit << middle.shift & taken:
            return None
        back = (count - 1) // 2
        one = self._arm(middle, count - 1 - back, taken, dotted)
        if one is None:
            return None
        other = self._arm(middle._replace(way=(way + WAYS // 2) % WAYS), back, one.taken, dotted)
        if other is None:
            return None
        taken = other.taken | self.stamps.wide(middle)
        return _Path([middle, *one.dashes, *other.dashes], one.ends + other.ends, taken)

    def _arm(self, first: Mark, count: int, taken: int, dotted: bool) -> _Path | None:
        """Draw ``count`` dashes after the first, and a dot. If no dash fits, undo a few and try again.

        The final mask of taken pixels excludes the surroundings of the first dash, at which the other arm begins.
        """
        marks, blocked = [first], [taken]
        """For each dash, mask of the pixels that the next dash must avoid: all taken pixels, except the surroundings of the dash
        itself."""
        for _ in range(_ATTEMPTS * count + 4):
            last = marks[-1]
            if len(marks) <= count:
                new = self._step(last, blocked[-1])
                if new:
                    marks.append(new)
                    blocked.append(blocked[-1] | self.stamps.wide(last))
                    continue
                kept = max(1, len(marks) - 3)
            else:
                dot = self.stamps.dot(last) if dotted else None
                if dot is None or not dot.lit << dot.shift & blocked[max(0, count - 1)]:
                    own = [*marks[1:], *([dot] if dot else [])]
                    for mark in own:
                        taken |= self.stamps.wide(mark)
                    return _Path(marks[1:], own[count:], taken)
                kept = max(1, len(marks) - 2)
            del marks[kept:], blocked[kept:]
        return None

    def _step(self, last: Mark, blocked: int) -> Mark | None:
        """Return the next dash that does not collide, or None. Three random turns are tried, then the two sharpest ones."""
        choices, shift, random = self.stamps.next(last), last.shift, self._random
        many = len(choices)
        if many:
            for at in (int(random() * many), int(random() * many), int(random() * many), 0, -1):
                new = choices[at]
                if not new.lit << shift + new.shift & blocked:
                    return Mark(last.x + new.x, last.y + new.y, new.way, new.stamp, shift + new.shift, new.lit)
        return None

    def render(self, drawings: Sequence[Drawing]) -> Images:
        """Return the grey levels (images, side, side) of the described images."""
        s = self.stamps
        covers = np.stack([stamp.cover for stamp in s.all])
        canvas = np.zeros((len(drawings), s.stride**2), dtype=np.uint8)
        dots = [(i, mark.stamp, mark.shift, DOT) for i, d in enumerate(drawings) for mark in d.dots]
        dashes = [
            (i, mark.stamp, mark.shift, level)
            for i, d in enumerate(drawings)
            for mark, level in zip(d.dashes, d.levels, strict=True)
        ]
        for marks in (dashes, dots):
            image, stamp, shift, level = np.array(marks, dtype=np.int64).T
            for y, x in product(range(s.size), repeat=2):
                cover = covers[stamp, y, x].astype(np.int64)
                on = cover > 0
                place = image[on], shift[on] + y * s.stride + x
                canvas[place] = np.maximum(canvas[place], cover[on] * level[on] // SAMPLES**2)  # a dot covers its path's end
        inner = slice(s.margin, -s.margin)
        return canvas.reshape(-1, s.stride, s.stride)[:, inner, inner]


def _sector(way: int, dx: int, dy: int) -> int:
    """Return the angle from (dx, dy) to a direction in sixteenths of a turn, from -8 to 8 without 0. 5/12 approximates tan 22.5
    degrees.
    """
    along, across = COSINE[way] * dx + SINE[way] * dy, SINE[way] * dx - COSINE[way] * dy
    ahead, aside = abs(along), abs(across)
    quarter = 1 if 12 * aside < 5 * ahead else 2 if aside < ahead else 3 if 5 * aside < 12 * ahead else 4
    found = quarter if along > 0 else 9 - quarter
    return found if across > 0 else -found
