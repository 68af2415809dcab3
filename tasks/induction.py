"""Induction: the last token also occurs earlier. Predict the token that followed this earlier occurrence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_zoo.contract import UNASKED, Level, Split, TaskSpec, Tokens
from attn_zoo.registry import register_task

from .parts.generated import Drawn, below, subsets
from .parts.levels import ENCODER, large, small, smoke
from .parts.options import require_range
from .parts.synthetic import SyntheticOptions, SyntheticTask

FIRST_SYMBOL = 1
"""Token id of the first symbol."""


@dataclass
class Options(SyntheticOptions):
    """Options of the task ``induction``."""

    length: int = 64
    """Length in tokens."""
    vocabulary: int = 16
    """Number of different symbols; the last token can be any of them."""
    occurrences: int = 1
    """Number of earlier occurrences of the last token. The label is the token after the latest of these occurrences."""
    causal: bool = False
    """True if each position sees only itself and earlier positions."""

    def __post_init__(self) -> None:
        require_range("induction.length", self.length, 4, 16_384, "counts tokens")
        require_range("induction.vocabulary", self.vocabulary, 3, 10_000, "counts symbols")
        most = (self.length - 1) // 2
        require_range("induction.occurrences", self.occurrences, 1, most, f"is below half of length={self.length}")
        self.require_sizes("induction")


@register_task(
    "induction",
    title="Induction",
    version="1",
    summary="Random symbols, of which the last has occurred before. Predict the symbol that followed it there.",
    source="generated; after Elhage et al. 2021 and Olsson et al. 2022, arXiv:2209.11895, and Fu et al. 2023, arXiv:2212.14052",
    licence="Apache-2.0 (generated here)",
    options=Options,
    levels={
        "cpu": small({"length": 32, "vocabulary": 8, "causal": True}, steps=800, batch_size=64),
        "profile_encoder": Level(
            model=ENCODER,
            budget={"steps": 1_200, "batch_size": 64, "learning_rate": 3e-3, "warmup_steps": 50, "evaluate_every": 100},
            differs="bidirectional; the network may be asked about any of 16 symbols, and nothing was published at this size",
        ),
        "smoke": smoke({"length": 16, "train": 500, "valid": 100, "test": 100}),
        "lra": large({"length": 256, "vocabulary": 64, "train": 100_000, "valid": 2_000, "test": 2_000}),
    },
    variants={
        "repeated": {"occurrences": 4, "vocabulary": 8, "causal": True, "train": 500, "valid": 90, "test": 90},
    },
)
class Induction(SyntheticTask):
    """Prediction, at the last position, of the symbol that followed the last symbol at its most recent earlier occurrence.

    The last symbol is drawn first. It occurs at ``occurrences`` random earlier positions, which are never adjacent, and nowhere
    else. Every other position has one of the other symbols, drawn uniformly.

    Source: the pattern ``A B ... A -> B`` of Elhage et al. 2021, which Fu et al. 2023 made into a task.
    Differs: in Fu et al., the last token is always the same special token. Here it can be any symbol, so it must be matched by
        content.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: both tokens and classes are the symbols."""
        o = self.options
        return TaskSpec(Tokens(FIRST_SYMBOL + o.vocabulary), o.length, o.vocabulary, labels="position", causal=o.causal)

    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Return the tokens and the labels of at most ``rows`` new examples."""
        o = self.options
        last = below(random, o.vocabulary, rows, 1)
        symbols = (last + 1 + below(random, o.vocabulary - 1, rows, o.length)) % o.vocabulary  # all except the last symbol
        symbols[:, -1:] = last
        # Each occurrence takes two positions: sorted positions are drawn, then each is shifted by the number of earlier ones.
        at = np.sort(subsets(random, rows, o.occurrences, o.length - 1 - o.occurrences), axis=1) + np.arange(o.occurrences)
        answers = np.take_along_axis(symbols, at[:, -1:] + 1, axis=1)
        np.put_along_axis(symbols, at, last, axis=1)
        labels = np.full((rows, o.length), UNASKED, dtype=np.int64)
        labels[:, -1:] = answers
        return FIRST_SYMBOL + symbols, labels
