"""Counted cost of mechanisms over lengths: every figure from formulas and shapes, none from a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from attn_zoo.contract import UnsupportedError
from attn_zoo.cost.counted.doubts import doubts
from attn_zoo.cost.counted.levels import QUANTITIES, Counted, Level, Sizes, count_level
from attn_zoo.registry import attention_options, card


@dataclass(frozen=True, slots=True)
class Setting:
    """What is counted, and at which sizes.

    Raises:
        ValueError: a size or the level is none.
    """

    level: Level
    lengths: tuple[int, ...]
    dim: int
    heads: int
    causal: bool
    mlp_ratio: float

    def __post_init__(self) -> None:
        if self.level not in get_args(Level):
            raise ValueError(f"level must be one of {', '.join(get_args(Level))}; got {self.level!r}")
        for name in ("dim", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.dim % self.heads:
            raise ValueError(f"dim must be divisible by heads; got {self.dim} and {self.heads}")
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths are whole numbers of at least 1; got {list(self.lengths)}")
        if self.mlp_ratio <= 0:
            raise ValueError(f"mlp_ratio is the width of the MLP over dim, so it is above 0; got {self.mlp_ratio}")

    def sizes(self, length: int) -> Sizes:
        """Those at one length."""
        return Sizes(length, self.dim, self.heads, self.causal, self.mlp_ratio)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row: a mechanism with its options and implementation, under the name that it has in the table."""

    label: str
    attention: str
    options: Mapping[str, Any]
    implementation: str = "eager"


def count_all(entries: Sequence[Entry], setting: Setting, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """Every entry at every length, as plain data; what is refused is a point with the reason.

    Args:
        tell: called with a line of progress now and then.
    """
    points = []
    for length in sorted(set(setting.lengths)):
        tell(f"length {length}")
        softmax = count_level(setting.level, "softmax", {}, setting.sizes(length))
        points += [_point(entry, setting, length, softmax) for entry in entries]
    return points


def _point(entry: Entry, setting: Setting, length: int, softmax: Counted) -> dict[str, Any]:
    sizes, known = setting.sizes(length), card(entry.attention)
    point: dict[str, Any] = {
        "label": entry.label,
        "attention": entry.attention,
        "implementation": entry.implementation,
        "options": dict(entry.options),
        "length": length,
        "refused": None,
    }
    try:
        options = attention_options(known, sizes.geometry, entry.options)
        counted = count_level(setting.level, entry.attention, entry.options, sizes, implementation=entry.implementation)
    except (UnsupportedError, ValueError) as error:
        return {**point, "refused": str(error)}
    shown = {name: counted.shown(name) for name in QUANTITIES}
    return {
        **point,
        **shown,
        "of_softmax": {name: _quotient(shown[name], softmax.shown(name)) for name in QUANTITIES},
        "disagreements": {name: list(pair) for name, pair in counted.disagreements().items()},
        "warnings": list(doubts(known, sizes.geometry, options)),
    }


def _quotient(own: int | None, softmax: int | None) -> float | None:
    return None if own is None or not softmax else own / softmax
