"""Memorisation: each key has one value in all examples. Values occur only as labels, so the weights must store them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_zoo.contract import UNASKED, Level, Split, TaskSpec, Tokens
from attn_zoo.registry import register_task

from .parts.generated import Drawn, below, stream, subsets
from .parts.levels import SMALL, smoke
from .parts.options import require_range
from .parts.synthetic import SyntheticOptions, SyntheticTask

BLANK = 1
"""Token id of the blank, at which a value is predicted. Keys have the ids after it."""


@dataclass
class Options(SyntheticOptions):
    """Options of the task ``memorise``."""

    length: int = 32
    """Length in tokens, an even number. Half of the tokens are keys, and half are blanks."""
    vocabulary: int = 256
    """Number of different keys and values together, an even number. Half of them are keys. Values occur as labels only."""
    train: int = 256
    test: int = 1_280

    def __post_init__(self) -> None:
        require_range("memorise.length", self.length, 2, 16_384, "counts tokens")
        if self.length % 2:
            raise ValueError(f"memorise.length must be even, because a blank follows each key; got {self.length}")
        require_range("memorise.vocabulary", self.vocabulary, 4, 60_000, "counts keys and values")
        if self.vocabulary % 2:
            raise ValueError(
                f"memorise.vocabulary must be even, because half of it are keys and half values; got {self.vocabulary}"
            )
        self.require_sizes("memorise")


@register_task(
    "memorise",
    title="Memorisation (MAD)",
    version="1",
    summary="Keys, each followed by a blank. Predict the value of the key, which is fixed for all examples and never in the input.",
    source="generated; after Poli et al. 2024 (MAD), arXiv:2403.17844",
    licence="Apache-2.0 (generated here)",
    options=Options,
    levels={
        "cpu": Level(
            model=SMALL,
            budget={"steps": 1600, "batch_size": 32, "learning_rate": 1e-3, "warmup_steps": 50, "evaluate_every": 100},
            differs="width 64 in place of 128, and batches of 32 in place of 128",
        ),
        "smoke": smoke({"vocabulary": 32, "train": 100, "valid": 50, "test": 50}),
        "lra": Level(
            model={"dim": 128, "depth": 2, "heads": 16, "mlp_ratio": 2.0, "dropout": 0.0},
            budget={"steps": 400, "batch_size": 128, "learning_rate": 5e-4, "weight_decay": 0.0, "evaluate_every": 50},
            differs="one of the published rates and weight decays, not the best of them; learned positions for rotary ones, an MLP "
            "with GELU for SwiGLU",
        ),
    },
    variants={
        "small": {"length": 12, "vocabulary": 20, "train": 200, "valid": 50, "test": 50},
    },
)
class Memorise(SyntheticTask):
    """Prediction of the value of the key before each blank. The table of values is drawn once, and all splits share it.

    The inputs contain no information about the values, so the weights must learn them. Attention only needs to see the token before
    the blank. The task therefore measures what a network stores in its weights and how fast, almost independently of its attention.

    Source: the paper and the code of Poli et al. 2024 (memorisation). An example has 32 tokens, with a vocabulary of 256. There are
        256 training and 1,280 test examples. The authors train networks of width 128 for 200 epochs in batches of 128. They try
        learning rates of 1e-4, 5e-4 and 1e-3, and weight decays of 0 and 0.1.
    Differs: classes are only the values here, and all tokens in the source. As in the source, a key may occur several times in an
        example.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: tokens are the blank and the keys. Classes are the values."""
        o = self.options
        return TaskSpec(Tokens(1 + BLANK + o.vocabulary // 2), o.length, o.vocabulary // 2, labels="position", causal=True)

    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Return the tokens and the labels of at most ``rows`` new examples."""
        o = self.options
        (table,) = subsets(stream(f"memorise {o.data_seed} table"), 1, o.vocabulary // 2, o.vocabulary // 2)
        keys = below(random, o.vocabulary // 2, rows, o.length // 2)
        ids, labels = (np.full((rows, o.length), fill, dtype=np.int64) for fill in (BLANK, UNASKED))
        ids[:, ::2], labels[:, 1::2] = 1 + BLANK + keys, table[keys]
        return ids, labels
