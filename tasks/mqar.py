"""Multi-query associative recall: pairs of keys and values, then each key again as a query. The label of a query is the value of
its key."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from attn_zoo.contract import UNASKED, Level, Split, TaskSpec, Tokens, added_later
from attn_zoo.registry import register_task

from .parts.generated import Drawn, below, in_turn, subsets, weighted_subsets
from .parts.levels import DECODER, ENCODER, SMALL, smoke
from .parts.options import require_range
from .parts.synthetic import SyntheticOptions, SyntheticTask


@dataclass
class Options(SyntheticOptions):
    """Options of the task ``mqar``."""

    length: int = 64
    """Length in tokens, an even number. Pairs come first, then queries among filler."""
    pairs: int = 16
    """Number of pairs of a key and its value, each queried once; at most a quarter of ``length``."""
    fewest_pairs: int = added_later(0)
    """Smallest number of pairs in a training or validation example. All numbers from ``fewest_pairs`` to ``pairs`` are equally
    frequent; 0 means that every example has ``pairs`` pairs."""
    most_pairs: int = added_later(0)
    """Largest number of pairs in a test example; 0 means the same numbers of pairs as in training. Test examples have
    ``fewest_pairs`` pairs, twice as many, four times as many and so on, with a separate score for each number. A test example needs
    at least ``length`` tokens and at least four tokens for each pair. Shorter test examples are filled up to the longest."""
    vocabulary: int = 64
    """Number of different keys and values together, an even number. Half of them are keys."""
    alpha: float = 0.01
    """Exponent of the distribution of gaps: a query is at the g-th even position after the pairs with a probability proportional to
    g^(alpha - 1). 1 gives a uniform distribution."""
    fillers: int = 1
    """Number of different filler tokens. None of them is a key or a value."""
    causal: bool = False
    """True if each position sees only itself and earlier positions, as published."""

    def __post_init__(self) -> None:
        require_range("mqar.length", self.length, 8, 16_384, "counts tokens")
        if self.length % 2:
            raise ValueError(f"mqar.length must be even, because keys are at even positions; got {self.length}")
        require_range("mqar.pairs", self.pairs, 1, self.length // 4, f"counts pairs, at most a quarter of length={self.length},")
        require_range("mqar.fewest_pairs", self.fewest_pairs, 0, self.pairs, f"counts pairs, at most pairs={self.pairs},")
        require_range("mqar.most_pairs", self.most_pairs, 0, 4_096, "counts pairs of the longest test sequences")
        if self.most_pairs and not 0 < self.fewest_pairs <= self.most_pairs:
            raise ValueError(f"mqar.fewest_pairs must be from 1 to most_pairs={self.most_pairs}; got {self.fewest_pairs}")
        require_range("mqar.vocabulary", self.vocabulary, 4, 30_000, "counts keys and values")
        most = max(self.pairs, self.most_pairs)
        if self.vocabulary % 2 or self.vocabulary < 2 * most:
            raise ValueError(
                f"mqar.vocabulary must be even and at least {2 * most}, because half of it are keys and half values; got "
                f"{self.vocabulary}"
            )
        require_range("mqar.alpha", self.alpha, -4, 4, "is the exponent of the distribution of gaps")
        require_range("mqar.fillers", self.fillers, 1, 1_000, "counts tokens of filler")
        self.require_sizes("mqar")


@register_task(
    "mqar",
    title="Associative recall (MQAR)",
    version="1",
    summary="Pairs of keys and values, then each key again among filler. Predict the value that the key was paired with.",
    source="generated; after Arora et al. 2023 (Zoology), arXiv:2312.04927",
    licence="Apache-2.0 (generated here)",
    options=Options,
    levels={
        "cpu": Level(
            model=SMALL,
            budget={"steps": 800, "batch_size": 32, "learning_rate": 5e-3, "warmup_steps": 50, "evaluate_every": 100},
            options={"causal": True, "pairs": 8, "train": 40_000},
            differs="64 kinds of tokens in place of 8,192, one thirtieth of the steps, and blocks with an MLP",
        ),
        "quick": Level(
            model=ENCODER,
            budget={"steps": 400, "batch_size": 32, "learning_rate": 5e-3, "warmup_steps": 50, "evaluate_every": 100},
            options={"length": 32, "pairs": 4, "vocabulary": 32},
            differs="bidirectional; 32 tokens, 4 pairs, and a sixtieth of the steps",
        ),
        "profile_encoder": Level(
            model=ENCODER,
            budget={"steps": 800, "batch_size": 32, "learning_rate": 3e-3, "warmup_steps": 50, "evaluate_every": 100},
            options={"pairs": 8, "train": 40_000},
            differs="bidirectional; 64 tokens, a vocabulary of 64, one thirtieth of the steps, and blocks with an MLP",
        ),
        "profile_decoder": Level(
            model=DECODER,
            budget={"steps": 400, "batch_size": 32, "learning_rate": 1e-2, "warmup_steps": 50, "evaluate_every": 100},
            options={"fewest_pairs": 4, "most_pairs": 32, "vocabulary": 128, "causal": True},
            differs="trained on 64 tokens with 4 to 16 pairs and tested up to 32, a sixtieth of the steps, and blocks with an MLP",
        ),
        "smoke": smoke({"length": 32, "pairs": 4, "vocabulary": 32, "train": 500, "valid": 100, "test": 100}),
        "lra": Level(
            model={"dim": 64, "depth": 2, "heads": 1, "dropout": 0.1},
            budget={"steps": 25_000, "batch_size": 256, "learning_rate": 2.2e-3, "weight_decay": 0.1, "evaluate_every": 500},
            options={
                "length": 256,
                "pairs": 16,
                "vocabulary": 8192,
                "causal": True,
                "train": 100_000,
                "valid": 3_000,
                "test": 3_000,
            },
            differs="the third of four published learning rates and no choice of the best; blocks have an MLP, theirs none",
        ),
    },
    variants={
        "ladder": {
            "length": 32,
            "pairs": 6,
            "fewest_pairs": 3,
            "most_pairs": 12,
            "vocabulary": 32,
            "causal": True,
            "train": 1000,
            "valid": 100,
            "test": 100,
        },
        "causal": {"length": 64, "pairs": 8, "vocabulary": 32, "causal": True, "train": 1000, "valid": 100, "test": 100},
        "even": {
            "length": 34,
            "pairs": 4,
            "vocabulary": 16,
            "alpha": 1.0,
            "fillers": 9,
            "train": 500,
            "valid": 90,
            "test": 90,
        },
    },
)
class Mqar(SyntheticTask):
    """Prediction of the value that a key was paired with, at the position at which the key occurs again.

    A sequence begins with ``k1 v1 k2 v2 ... kP vP``: P different keys (by default ``pairs``), each followed by its value. All
    values differ. Each key occurs again at one later even position, as a query. The label at this position is the value of the key;
    other positions have no label. The value does not follow the query, so a bidirectional network cannot read the answer there. A
    model that only knows which values occur has an accuracy of 1 / P.

    Source: Arora et al. 2023, Section 3 and appendix, with lengths 64 to 512, 4 to 64 pairs, and 8,192 tokens.
    Differs: the source is causal. Here ``causal`` is an option, so that mechanisms without a causal form can be tested too. The
        presets ``cpu``, ``lra`` and ``profile_decoder`` set it to True. (A bidirectional model takes many times longer to learn
        which neighbour of a key is its value.) For one pair after another, the source draws the gap between the list of pairs and
        the query. The first pairs then tend to be queried first, so the position of a query is informative. Here the gaps are
        assigned to the pairs in random order, so the position is uninformative. Filler tokens are never keys or values here. In the
        source, the filler is one blank token, or random tokens that can be keys. Classes are only the values here, and all tokens
        in the source. The vocabulary is smaller by default. The source reports the best of four learning rates; here they can be
        compared on a validation split.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: tokens are filler, keys and values. Classes are the values."""
        o = self.options
        longest = max(o.length, 4 * max(self._ladder(), default=0))
        shorter = o.length if o.length < longest else None
        tokens = Tokens(1 + o.fillers + o.vocabulary)
        return TaskSpec(tokens, longest, o.vocabulary // 2, labels="position", causal=o.causal, train_length=shorter)

    @property
    def criterion(self) -> str:
        """Name of the validation examples, whose score can decide when a run ends. They have as many pairs as training examples;
        test examples can have more."""
        o = self.options
        return f"validation, with {o.fewest_pairs} to {o.pairs} pairs" if self._ladder() else super().criterion

    def slices(self, split: Split) -> dict[str, Bool[Tensor, " examples"]]:
        """Return one mask of the examples for each number of pairs that a test example can have, or none if ``most_pairs`` is 0."""
        counts = (self.examples(split).labels() != UNASKED).sum(dim=1)
        return {f"{pairs} pairs": counts == pairs for pairs in self._ladder()}

    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Return the tokens and the labels of at most ``rows`` new examples. All possible numbers of pairs are equally frequent."""
        o = self.options
        trained = list(range(o.fewest_pairs or o.pairs, o.pairs + 1))
        counts = (split == "test" and self._ladder()) or trained
        blocks = [self._draw(random, max(1, rows // len(counts)), pairs, max(o.length, 4 * max(counts))) for pairs in counts]
        return in_turn(blocks)

    def _ladder(self) -> list[int]:
        """Return the numbers of pairs of the test: ``fewest_pairs``, twice as many, and so on up to ``most_pairs``."""
        o = self.options
        return [o.fewest_pairs << step for step in range(o.most_pairs.bit_length()) if 0 < o.fewest_pairs << step <= o.most_pairs]

    def _draw(self, random: np.random.RandomState, rows: int, pairs: int, length: int) -> Drawn:
        o = self.options
        weights = gap_weights((max(o.length, 4 * pairs) - 2 * pairs) // 2, o.alpha)
        first_key, first_value = 1 + o.fillers, 1 + o.fillers + o.vocabulary // 2
        keys, values = (subsets(random, rows, pairs, o.vocabulary // 2) for _ in range(2))
        order = subsets(random, rows, pairs, pairs)  # shuffled, since small gaps tend to be drawn first
        at = 2 * pairs + 2 * weighted_subsets(random, rows, pairs, weights)
        ids = 1 + below(random, o.fillers, rows, length)
        ids[:, 0 : 2 * pairs : 2] = first_key + keys
        ids[:, 1 : 2 * pairs : 2] = first_value + values
        labels = np.full((rows, length), UNASKED, dtype=np.int64)
        np.put_along_axis(ids, at, first_key + np.take_along_axis(keys, order, axis=1), axis=1)
        np.put_along_axis(labels, at, np.take_along_axis(values, order, axis=1), axis=1)
        return ids, labels


def gap_weights(gaps: int, alpha: float) -> NDArray[np.int64]:
    """Return the weight of each gap g from 1 to ``gaps``: g^(``alpha`` - 1), scaled to a maximum of 2^32. A query with the gap g is
    at the g-th even position after the pairs.

    The weights are integers, so that they are equal on every machine.
    """
    powers = [Decimal(gap) ** (Decimal(str(alpha)) - 1) for gap in range(1, gaps + 1)]
    return np.array([max(1, int(power / max(powers) * 2**32)) for power in powers], dtype=np.int64)
