"""Copying: the input has symbols, a delimiter, and one blank for each symbol. The labels at these blanks are the symbols."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from attn_zoo.contract import UNASKED, Level, Split, TaskSpec, Tokens
from attn_zoo.registry import register_task

from .parts.generated import Drawn, below, subsets
from .parts.levels import ENCODER, large, small, smoke
from .parts.options import choice, require_range
from .parts.synthetic import SyntheticOptions, SyntheticTask

DELIMITER = 1
BLANK = 2
FIRST_SYMBOL = 3
"""Token id of the first symbol. The other symbols have the next ids."""


class Order(Enum):
    """Order in which the symbols are copied."""

    forward = "forward"
    reversed = "reversed"


@dataclass
class Options(SyntheticOptions):
    """Options of the task ``copying``."""

    length: int = 64
    """Length in tokens. First come symbols and blanks, then the delimiter, then one labelled blank for each symbol."""
    tokens: int = 16
    """Number of symbols to copy. Twice this number, plus one for the delimiter, must not exceed ``length``."""
    vocabulary: int = 16
    """Number of different symbols."""
    scattered: bool = True
    """True for symbols at random positions among blanks. False for adjacent symbols at the start."""
    order: Order = Order.forward
    """Order of the labels: ``forward`` or ``reversed``."""
    causal: bool = False
    """True if each position sees only itself and earlier positions."""

    def __post_init__(self) -> None:
        self.order = choice("copying.order", self.order, Order)
        require_range("copying.length", self.length, 5, 16_384, "counts tokens")
        most = (self.length - 1) // 2
        require_range(
            "copying.tokens", self.tokens, 1, most, f"counts symbols, at most half of length={self.length} without the delimiter,"
        )
        require_range("copying.vocabulary", self.vocabulary, 2, 10_000, "counts symbols")
        self.require_sizes("copying")


@register_task(
    "copying",
    title="Copying",
    version="1",
    summary="Symbols among blanks, then a delimiter and more blanks. Predict the symbols in order, one at each blank.",
    source="generated; after Arjovsky et al. 2016, arXiv:1511.06464, scattered as by Jing et al. 2019, arXiv:1706.02761",
    licence="Apache-2.0 (generated here)",
    options=Options,
    levels={
        "cpu": small({"causal": True}, steps=1000),
        "profile_encoder": Level(
            model=ENCODER,
            budget={"steps": 400, "batch_size": 32, "learning_rate": 3e-3, "warmup_steps": 50, "evaluate_every": 100},
            options={"tokens": 24, "scattered": False},
            differs="bidirectional; 24 symbols out of 16 kinds and 15 blanks in place of 10 out of 8 and 100 to 500",
        ),
        "profile_decoder": Level(
            model=ENCODER,
            budget={"steps": 600, "batch_size": 32, "learning_rate": 1e-2, "warmup_steps": 50, "evaluate_every": 100},
            options={"tokens": 8, "causal": True},
            differs="64 tokens, 8 of them symbols, in place of MAD's 256 and 16; a thirtieth of the steps, on fresh data",
        ),
        "smoke": smoke({"length": 24, "tokens": 4, "train": 500, "valid": 100, "test": 100}),
        "lra": large({"length": 1024, "tokens": 128, "train": 100_000, "valid": 2_000, "test": 2_000}),
    },
    variants={
        "reversed": {"order": "reversed", "causal": True, "train": 500, "valid": 90, "test": 90},
        "together": {"scattered": False, "length": 41, "tokens": 20, "vocabulary": 4, "train": 500, "valid": 90, "test": 90},
    },
)
class Copying(SyntheticTask):
    """Copying of symbols. The symbols before the delimiter must be predicted, one at each blank after the delimiter.

    A model that counts symbols but ignores their positions can predict the most frequent symbol everywhere. Its accuracy is on
    average well above 1 / ``vocabulary``.

    Source: the copying memory of Arjovsky et al. 2016, in which the symbols are adjacent. Selective copying, in which the symbols
        are scattered among blanks, is from Jing et al. 2019. Gu and Dao 2023 (arXiv:2312.00752) use it with 16 symbols in 4,096
        tokens. Poli et al. 2024 (MAD, arXiv:2403.17844) use 16 symbols in 256 tokens, with 12,800 training examples for 200 epochs.
    Differs: symbols are scattered by default. (Adjacent symbols are all at the same distance from their copies, so fixed positional
        weights solve the task.) The source is causal; here ``causal`` is an option. The reversed order is new.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: tokens are the delimiter, the blank and the symbols. Classes are the symbols."""
        o = self.options
        return TaskSpec(Tokens(FIRST_SYMBOL + o.vocabulary), o.length, o.vocabulary, labels="position", causal=o.causal)

    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Return the tokens and the labels of at most ``rows`` new examples."""
        o = self.options
        delimiter = o.length - o.tokens - 1
        symbols = below(random, o.vocabulary, rows, o.tokens)
        ids = np.full((rows, o.length), BLANK, dtype=np.int64)
        ids[:, delimiter] = DELIMITER
        if o.scattered:
            at = np.sort(subsets(random, rows, o.tokens, delimiter), axis=1)
            np.put_along_axis(ids, at, FIRST_SYMBOL + symbols, axis=1)
        else:
            ids[:, : o.tokens] = FIRST_SYMBOL + symbols
        labels = np.full((rows, o.length), UNASKED, dtype=np.int64)
        labels[:, delimiter + 1 :] = symbols[:, ::-1] if o.order is Order.reversed else symbols
        return ids, labels
