"""Selective sum and majority: compute a function of those digits that follow a mark."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from attn_zoo.contract import UNASKED, Level, Split, TaskSpec, Tokens, added_later
from attn_zoo.registry import register_task

from .parts.generated import Drawn, balance, below, counts_of, subsets
from .parts.levels import ENCODER, large, small, smoke
from .parts.options import choice, require_range
from .parts.synthetic import SyntheticOptions, SyntheticTask

MARK = 1
ASK = 2
FIRST_DIGIT = 3
"""Token id of the first digit. The other digits have the next ids."""


class Kind(Enum):
    """Label of an example: the sum or the majority of the marked digits."""

    sum = "sum"
    majority = "majority"


class Unmarked(Enum):
    """Distribution of the digits without a mark."""

    balanced = "balanced"
    independent = "independent"


@dataclass
class Options(SyntheticOptions):
    """Options of the task ``selective``."""

    length: int = 64
    """Length in tokens, including marks and the query, which is the last token."""
    marked: int = 5
    """Number of marked digits. ``marked * (modulus + 1)`` must be less than ``length``, so that all digits can be equally
    frequent."""
    modulus: int = 4
    """Number of different digits, which are the classes."""
    kind: Kind = Kind.majority
    """``sum`` of the marked digits modulo ``modulus``, or ``majority``: the most frequent of them, without ties."""
    unmarked: Unmarked = added_later(Unmarked.balanced)
    """How the digits without a mark are drawn. With ``balanced``, all digits are equally frequent in the whole sequence, so their
    counts are uninformative. With ``independent``, the digits without a mark are drawn uniformly. The most frequent digit of the
    sequence is then the majority of the marked digits more often than by chance."""
    causal: bool = False
    """True if each position sees only itself and earlier positions."""

    def __post_init__(self) -> None:
        self.kind = choice("selective.kind", self.kind, Kind)
        self.unmarked = choice("selective.unmarked", self.unmarked, Unmarked)
        require_range("selective.length", self.length, 4, 16_384, "counts tokens")
        require_range("selective.modulus", self.modulus, 2, 1_000, "counts digits")
        most = (self.length - 1) // (self.modulus + 1)
        require_range("selective.marked", self.marked, 1, most, f"is at most (length - 1) / (modulus + 1), here {most},")
        if self.kind is Kind.majority and self.marked == 2:
            raise ValueError(
                "selective.marked must not be 2 with kind=majority, because two digits have a majority only if they are "
                "equal. Choose 1, or 3 or more"
            )
        self.require_sizes("selective")


@register_task(
    "selective",
    title="Selective sum / majority",
    version="1",
    summary="Digits, some of which follow a mark. Predict the sum of the marked digits modulo m, or the most frequent of them.",
    source="generated",
    licence="Apache-2.0 (generated here)",
    options=Options,
    levels={
        "cpu": small({"causal": True}, steps=1000, learning_rate=4e-3),
        "profile_encoder": Level(
            model=ENCODER,
            budget={"steps": 800, "batch_size": 32, "learning_rate": 3e-3, "warmup_steps": 50, "evaluate_every": 100},
            options={"length": 80, "marked": 15, "unmarked": "independent"},
            differs="bidirectional, and counts over all tokens are informative; nothing was published",
        ),
        "smoke": smoke({"length": 32, "train": 500, "valid": 100, "test": 100}, learning_rate=2e-3),
        "lra": large({"length": 1024, "marked": 25, "train": 100_000, "valid": 2_000, "test": 2_000}),
    },
    variants={
        "sum": {"kind": "sum", "marked": 3, "modulus": 10, "causal": True, "train": 1000, "valid": 100, "test": 100},
        "independent": {"length": 80, "marked": 15, "unmarked": "independent", "train": 1000, "valid": 100, "test": 100},
    },
)
class Selective(SyntheticTask):
    """Prediction of the sum or the majority of those digits that follow a mark.

    The marked digits are drawn first, uniformly. With ``unmarked=balanced``, the other digits are chosen so that all digits are
    equally frequent over the whole sequence. If this is impossible, some digits, drawn independently of the label, occur once more
    than the others. The label is at the last token, the query. (In a causal task, a class token at the start could not see the
    other tokens.)

    Source: none. One attention layer must find the marks, and another must add the digits after them. The task is similar to
        selective copying (Gu and Dao 2023, arXiv:2312.00752), and to parity and majority, on which efficient mechanisms differ.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: tokens are the mark, the query and the digits. Classes are the digits."""
        o = self.options
        return TaskSpec(Tokens(FIRST_DIGIT + o.modulus), o.length, o.modulus, labels="position", causal=o.causal)

    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Return the tokens and the labels of at most ``rows`` new examples."""
        o = self.options
        majority = o.kind is Kind.majority
        chosen = below(random, o.modulus, rows, o.marked)
        counts = counts_of(chosen, o.modulus)
        if majority:
            ordered = np.sort(counts, axis=1)
            clear = ordered[:, -1] > ordered[:, -2]
            chosen, counts = chosen[clear], counts[clear]
        size = o.length - 1 - 2 * o.marked
        balanced = o.unmarked is Unmarked.balanced
        others = balance(random, counts, size) if balanced else below(random, o.modulus, len(chosen), size)
        ids, labels = (np.full((len(chosen), o.length), fill, dtype=np.int64) for fill in (ASK, UNASKED))
        ids[:, :-1] = _arrange(random, chosen, others)
        labels[:, -1] = counts.argmax(axis=1) if majority else chosen.sum(axis=1) % o.modulus
        return ids, labels


def _arrange(random: np.random.RandomState, chosen: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return tokens: the chosen digits after marks at random positions, and the other digits elsewhere. Both keep their order."""
    rows, marked = chosen.shape
    units = marked + others.shape[1]
    places = np.sort(subsets(random, rows, marked, units), axis=1)
    marks = places + np.arange(marked)  # each earlier mark shifts the position by one
    ids = np.zeros((rows, units + marked), dtype=np.int64)
    np.put_along_axis(ids, marks, MARK, axis=1)
    np.put_along_axis(ids, marks + 1, FIRST_DIGIT + chosen, axis=1)
    ids[ids == 0] = FIRST_DIGIT + others.ravel()  # row by row, in order
    return ids
