"""Colour scale of shades: one hue in even steps of lightness, for light and dark mode."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attn_zoo.plotting.theme import DARK, INK, PAPER

LEVELS = 20
"""Number of shades besides none; each is five per cent of the distance from the best control to the best mechanism."""
_HUE = 257.0
"""Hue in degrees of OKLCH: a blue, which no common colour blindness confuses with white or black."""
_READABLE = 4.5
"""Smallest contrast of text against its cell that WCAG 2 asks for."""


@dataclass(frozen=True, slots=True)
class Shade:
    """Colours of a cell and of the text in it."""

    fill: str
    text: str


def level(shade: float) -> int:
    """Level of a shade between 0 and 1: 0 for no shade, ``LEVELS`` for the deepest."""
    return 0 if shade <= 0 else max(1, min(LEVELS, math.ceil(round(shade * LEVELS, 9))))


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    """Contrast of two colours as WCAG 2 defines it, from 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _oklch(lightness: float, chroma: float) -> str:
    """A colour of the hue as ``#rrggbb``, clipped to sRGB (Ottosson 2020, "A perceptual color space for image processing")."""
    a, b = chroma * math.cos(math.radians(_HUE)), chroma * math.sin(math.radians(_HUE))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )
    shares = [12.92 * v if v <= 0.0031308 else 1.055 * max(v, 0.0) ** (1 / 2.4) - 0.055 for v in linear]
    return "#" + "".join(f"{round(255 * max(0.0, min(1.0, share))):02x}" for share in shares)


def _ramp(paper: str, ink: str, pale: float, deep: float) -> tuple[Shade, ...]:
    """Paper without shade, then ``LEVELS`` shades from lightness ``pale`` to ``deep``; chroma is greatest at medium lightness."""
    fills = [paper]
    for at in range(LEVELS):
        lightness = pale + (deep - pale) * at / (LEVELS - 1)
        fills.append(_oklch(lightness, 0.02 + 0.13 * math.sin(math.pi * min(1.0, max(0.0, lightness))) ** 2))
    texts = (ink, "#ffffff", "#000000")
    return tuple(Shade(fill, next(text for text in texts if contrast(fill, text) >= _READABLE)) for fill in fills)


LIGHT_SHADES = _ramp(PAPER, INK, 0.955, 0.34)
DARK_SHADES = _ramp(DARK[PAPER], DARK[INK], 0.27, 0.90)
