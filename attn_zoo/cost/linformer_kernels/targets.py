"""What the kernels should reach, and whether they did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SHARE_OF_FLOOR: Mapping[tuple[str, str, int | None], float] = {
    ("core", "forward", 128): 0.70,
    ("core", "forward", 256): 0.55,
    ("core", "backward", 128): 0.50,
    ("core", "backward", 256): 0.45,
    ("projection", "forward", None): 0.60,
}
"""Floor over time, at least, by part, kind and rows; None is any number of rows."""

SAME_AT_ALL_LENGTHS = 1.15
"""Time of the longest sequences over that of 4,096, of equally many tokens, at most."""

FASTER_THAN_SDPA: Mapping[int, float] = {512: 1.4, 4096: 5.5, 65536: 70.0}
"""Time of the best softmax layer over that of ours with 128 projected keys, forward, at least, by length."""

LESS_MEMORY_THAN_SDPA = 1.4
"""Bytes of a training step of the softmax layer over those of ours with 256 projected keys, at least, from 8,192 tokens on."""

STANDARD = {"dim": 768, "heads": 12, "tokens": 65536, "precision": "bf16"}
"""What the targets are set for; under another setting there are none but shares of the floor."""


def share_target(part: str, kind: str, rows: int) -> float | None:
    """The least share of the floor, where there is a target."""
    return SHARE_OF_FLOOR.get((part, kind, rows), SHARE_OF_FLOOR.get((part, kind, None)))


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target and what came of it."""

    what: str
    word: str
    """``reached``, ``missed``, ``wrong`` (results are not right, so times mean nothing), or why there is no figure."""

    @property
    def counts(self) -> bool:
        """Whether it is a figure of right results."""
        return self.word in ("reached", "missed")


def judge(what: str, value: float | str, target: float, *, most: bool = False, wrong: bool = False) -> Verdict:
    """Hold a figure against its target; a word in its place says why there is none.

    Args:
        most: the figure should be at most, not at least, the target.
        wrong: the results behind it are not right.
    """
    if isinstance(value, str):
        return Verdict(what, value)
    if wrong:
        return Verdict(what, "wrong")
    return Verdict(what, "reached" if (value <= target if most else value >= target) else "missed")
