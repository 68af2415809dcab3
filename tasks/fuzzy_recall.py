"""Fuzzy recall: predict the value of a key that occurred earlier. Keys and values consist of one to three tokens."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from attn_zoo.contract import UNASKED, Level, Split, TaskSpec, Tokens
from attn_zoo.registry import register_task

from .parts.generated import Drawn, below, weighted_subsets
from .parts.levels import DECODER, SMALL, smoke
from .parts.options import require_range
from .parts.synthetic import SyntheticOptions, SyntheticTask

FILLER = 1
"""Token id of the filler, which comes after the last value. Tokens of keys have the next ids, and tokens of values the ids after
these."""
MOST_MOTIFS = 10_000
"""Largest allowed value of (``vocabulary`` / 2)^``longest``, the number of different keys with ``longest`` tokens."""


@dataclass
class Options(SyntheticOptions):
    """Options of the task ``fuzzy_recall``."""

    length: int = 128
    """Length in tokens. A sequence has as many keys with their values as fit."""
    pairs: int = 8
    """Number of different keys in an example, each with one value. It must be less than ``length`` / (2 ``longest``), so that at
    least one key recurs."""
    vocabulary: int = 16
    """Number of different tokens of keys and values together, an even number. Half of them occur in keys, and half in values."""
    longest: int = 3
    """Largest number of tokens in a key or a value. All numbers from 1 to ``longest`` are about equally frequent."""

    def __post_init__(self) -> None:
        require_range("fuzzy_recall.longest", self.longest, 1, 4, "counts tokens of a key or a value")
        require_range("fuzzy_recall.length", self.length, 8, 16_384, "counts tokens")
        require_range("fuzzy_recall.vocabulary", self.vocabulary, 4, 2 * MOST_MOTIFS, "counts tokens of keys and values")
        if self.vocabulary % 2 or (self.vocabulary // 2) ** self.longest > MOST_MOTIFS:
            raise ValueError(
                "fuzzy_recall.vocabulary must be even, because half of it are keys and half values, and (vocabulary / "
                f"2)^longest must be at most {MOST_MOTIFS:,}; got vocabulary={self.vocabulary} and longest={self.longest}"
            )
        most = min(self.length // (2 * self.longest) - 1, self.vocabulary // 2)
        require_range(
            "fuzzy_recall.pairs",
            self.pairs,
            1,
            most,
            "counts keys, fewer than length / (2 longest) and at most half of vocabulary,",
        )
        self.require_sizes("fuzzy_recall")


@register_task(
    "fuzzy_recall",
    title="Fuzzy recall (MAD)",
    version="1",
    summary="Keys and values of one to three tokens. Predict the value of a key that has occurred before.",
    source="generated; after Poli et al. 2024 (MAD), arXiv:2403.17844",
    licence="Apache-2.0 (generated here)",
    options=Options,
    levels={
        "cpu": Level(
            model=SMALL,
            budget={"steps": 1000, "batch_size": 64, "learning_rate": 3e-3, "warmup_steps": 50, "evaluate_every": 100},
            options={"train": 40_000},
            differs="width 64, 8 keys an example, a twentieth of the steps, on three times as many examples",
        ),
        "profile_decoder": Level(
            model=DECODER,
            budget={"steps": 500, "batch_size": 32, "learning_rate": 1e-2, "warmup_steps": 50, "evaluate_every": 100},
            options={"length": 96, "pairs": 6},
            differs="width 64, 96 tokens, 6 keys an example, a fortieth of the steps, on fresh data",
        ),
        "smoke": smoke({"length": 48, "pairs": 3, "train": 500, "valid": 100, "test": 100}),
        "lra": Level(
            model={"dim": 128, "depth": 2, "heads": 16, "mlp_ratio": 2.0, "dropout": 0.0},
            budget={"steps": 20_000, "batch_size": 128, "learning_rate": 5e-4, "weight_decay": 0.0, "evaluate_every": 500},
            options={"train": 12_800, "test": 1_280},
            differs="one of the published rates and weight decays, not the best of them; learned positions for rotary ones, an MLP "
            "with GELU for SwiGLU",
        ),
    },
    variants={
        "pairs": {"length": 40, "pairs": 4, "vocabulary": 10, "longest": 2, "train": 500, "valid": 90, "test": 90},
    },
)
class FuzzyRecall(SyntheticTask):
    """Recall of the value of an earlier key. Keys and values are motifs: one or more tokens that must be matched as a whole.

    A sequence consists of keys, each followed by its value. The different keys of an example (``pairs`` is their number) and their
    values are drawn anew for each example. Whenever a key recurs, its value must be predicted. Each token of the value is predicted
    at the position before that token. Keys and values share no tokens, so the token after a motif shows that the motif has ended.

    Source: the paper and the code of Poli et al. 2024 (fuzzy in-context recall). An example has 128 tokens, with a vocabulary of 16
        and motifs of up to 3 tokens. The authors train networks of width 128 on 12,800 examples for 200 epochs in batches of 128.
        They try learning rates of 1e-4, 5e-4 and 1e-3, and weight decays of 0 and 0.1.
    Differs: an example has a fixed number of keys, so that keys soon recur; the source draws keys from all motifs. Two tokens of a
        motif may be equal here. Keys of all lengths are tested here; the source tests only the longest ones. Only values are
        predicted; in training, the source predicts every token. Classes are the tokens of values here, and all tokens in the
        source.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: tokens are the filler and the tokens of keys and values. Classes are the tokens of values."""
        o = self.options
        return TaskSpec(Tokens(1 + FILLER + o.vocabulary), o.length, o.vocabulary // 2, labels="position", causal=True)

    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Return the tokens and the labels of at most ``rows`` new examples."""
        o = self.options
        letters = o.vocabulary // 2
        motifs = [motif for size in range(1, o.longest + 1) for motif in product(range(letters), repeat=size)]
        sizes = np.array([len(motif) for motif in motifs])
        tokens = np.array([[*motif, *[0] * (o.longest - len(motif))] for motif in motifs])
        keys, values = (weighted_subsets(random, rows, o.pairs, letters ** (o.longest - sizes)) for _ in range(2))
        pair = below(random, o.pairs, rows, o.length // 2)
        keys, values = (np.take_along_axis(chosen, pair, axis=1) for chosen in (keys, values))
        ends = (sizes[keys] + sizes[values]).cumsum(axis=1)
        answers = ends - sizes[values]
        first = np.stack([(pair == number).argmax(axis=1) for number in range(o.pairs)], axis=1)
        again = np.arange(pair.shape[1]) > np.take_along_axis(first, pair, axis=1)
        ids, labels = (np.full((rows, o.length), fill, dtype=np.int64) for fill in (FILLER, UNASKED))
        for place in range(o.longest):
            row, unit = ((place < sizes[keys]) & (ends <= o.length)).nonzero()
            ids[row, (answers - sizes[keys])[row, unit] + place] = 1 + FILLER + tokens[keys[row, unit], place]
            row, unit = ((place < sizes[values]) & (ends <= o.length)).nonzero()
            ids[row, answers[row, unit] + place] = 1 + FILLER + letters + tokens[values[row, unit], place]
            row, unit = ((place < sizes[values]) & (ends <= o.length) & again).nonzero()
            labels[row, answers[row, unit] + place - 1] = tokens[values[row, unit], place]
        return ids, labels
