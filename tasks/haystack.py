"""Needle in a haystack of bytes: one sentence in a long text contains the answer to the question at its end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from random import Random

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from attn_zoo.contract import UNASKED, Split, TaskSpec, Tokens
from attn_zoo.registry import register_task

from .parts.generated import Drawn, below, subsets
from .parts.levels import large, small, smoke
from .parts.options import choice, require_range
from .parts.synthetic import SyntheticOptions, SyntheticTask

KEYS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NEEDLE = "{key} is {value}. "
QUESTION = "what is {key}?"
WORDS = 512
"""Number of different words."""
_WIDEST = 8
"""Length in bytes of a needle, and of the longest word with the space after it."""


class Values(Enum):
    """Kind of the values in needles. A needle is a sentence to be found, such as ``K is 7.``"""

    digits = "digits"
    letters = "letters"


ALPHABETS = {Values.digits: "0123456789", Values.letters: "abcdefghijklmnopqrstuvwxyz"}


@dataclass
class Options(SyntheticOptions):
    """Options of the task ``haystack``."""

    length: int = 256
    """Length in bytes, including the question."""
    values: Values = Values.digits
    """Kind of the values: ``digits`` for ten classes, or ``letters`` for 26."""
    distractors: int = 1
    """Number of distractors, at most 25: sentences like the needle, with keys that the question does not name."""
    causal: bool = False
    """True if each position sees only itself and earlier positions."""
    shallowest: float = 0.0
    """Smallest depth of the needle: 0 is the start of the text, and 1 is its end. Depths are drawn uniformly from ``shallowest`` to
    ``deepest``."""
    deepest: float = 1.0
    """Largest depth of the needle, from ``shallowest`` to 1 (the end of the text)."""

    def __post_init__(self) -> None:
        self.values = choice("haystack.values", self.values, Values)
        require_range("haystack.distractors", self.distractors, 0, len(KEYS) - 1, "counts needles about other keys")
        least = _bytes_not_filler(self.values, self.distractors) + 2 * _WIDEST
        meaning = f"counts bytes, {least} or more with {self.distractors} distractors and values={self.values.value},"
        require_range("haystack.length", self.length, least, 65_536, meaning)
        if not 0 <= self.shallowest <= self.deepest <= 1:
            raise ValueError(
                "haystack.shallowest and haystack.deepest must be from 0 to 1, and shallowest must be at most deepest; got "
                f"{self.shallowest} and {self.deepest}"
            )
        self.require_sizes("haystack")


@register_task(
    "haystack",
    title="Needle in a byte haystack",
    version="1",
    summary="Invented words in bytes hide a sentence that gives a key its value. Predict the value of the key in the question.",
    source="generated; after Kamradt 2023 (needle in a haystack) and Hsieh et al. 2024 (RULER), arXiv:2404.06654",
    licence="Apache-2.0 (generated here)",
    options=Options,
    levels={
        "cpu": small({"causal": True}, steps=600),
        "smoke": smoke({"length": 96, "train": 500, "valid": 100, "test": 100}, learning_rate=2e-3),
        "lra": large({"length": 4096, "distractors": 3, "train": 40_000, "valid": 2_000, "test": 2_000}),
    },
    variants={
        "letters": {"values": "letters", "distractors": 3, "length": 512, "causal": True, "train": 1000, "valid": 100, "test": 100},
        "middle": {"shallowest": 0.5, "deepest": 0.5, "train": 500, "valid": 90, "test": 90},
    },
)
class Haystack(SyntheticTask):
    """Prediction of the value of the key that a question names. The prediction is made at the last byte, the question mark.

    The text consists of invented words of two to seven letters. Between the words are the needle (a sentence such as ``K is 7.``,
    with the key K and the value 7), needles with other keys (``distractors`` is their number), and single values (digits or
    letters). Needles have different values, if there are enough values. The single values make all values equally frequent, so
    counts of bytes are uninformative. A model that finds needles but cannot match keys has an accuracy of 1 / (``distractors`` +
    1).

    A token is the value of a byte plus one; 0 is padding, which does not occur. The depth of an example is the position of its
    needle: 0 at the start of the text, and 1 right before the question. Each fifth of the depths has its own score.

    Source: Kamradt 2023 tested language models with a sentence hidden in essays, at several depths and lengths. RULER added keys,
        values and distractors.
    Differs: networks are trained from scratch. Words are therefore invented, keys are single capital letters, and a value is one
        byte. The answer is a class that is predicted at one position.
    """

    options: Options

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: tokens are bytes. The class to predict is the hidden value."""
        o = self.options
        return TaskSpec(Tokens(257), o.length, len(ALPHABETS[o.values]), labels="position", causal=o.causal)

    def draw(self, random: np.random.RandomState, rows: int, split: Split) -> Drawn:
        """Return the tokens and the labels of at most ``rows`` new examples, and the position at which the needle of each example
        starts."""
        return self._author.draw(random, rows)

    def depths(self, split: Split) -> Float[Tensor, " examples"]:
        """Return the depth of the needle in each example, from 0 to 1."""
        room = self.options.length - len(QUESTION.format(key="K")) - _WIDEST
        return torch.from_numpy(self.drawn(split)[2] / room).float()

    def slices(self, split: Split) -> dict[str, Bool[Tensor, " examples"]]:
        """Return five masks of the examples: depths from 0 to 0.2, from 0.2 to 0.4, and so on."""
        fifth = (self.depths(split) * 5).long().clamp(0, 4)
        return {f"depth {at / 5:.1f}-{(at + 1) / 5:.1f}": fifth == at for at in range(5)}

    @cached_property
    def _author(self) -> _Generator:
        return _Generator(self.options)


def _bytes_not_filler(values: Values, distractors: int) -> int:
    """Number of bytes of the question, the needles and the single values."""
    needles, kinds = distractors + 1, len(ALPHABETS[values])
    single = -(-needles // kinds) * kinds - needles
    return len(QUESTION.format(key="K")) + needles * _WIDEST + 2 * single


class _Generator:
    """Generator of texts in blocks. A text is made of items: words, single values, and needles."""

    def __init__(self, options: Options) -> None:
        self.options, self.alphabet, self.words = options, ALPHABETS[options.values], _words()
        single = [f"{value} " for value in self.alphabet]
        needles = [NEEDLE.format(key=key, value=value) for key in KEYS for value in self.alphabet]
        items = [*(word + " " for word in self.words), *single, *needles]
        self.sizes = np.array([len(item) for item in items])
        self.bytes = np.array([list(item.encode().ljust(_WIDEST)) for item in items])
        self.first_single, self.first_needle = len(self.words), len(self.words) + len(single)
        self.questions = np.array([list(QUESTION.format(key=key).encode()) for key in KEYS])
        self.body = options.length - self.questions.shape[1]

    def draw(self, random: np.random.RandomState, rows: int) -> Drawn:
        """Return tokens, labels, and the start of the needle."""
        keys = subsets(random, rows, self.options.distractors + 1, len(KEYS))
        values = self._deal(random, rows)
        needles = self.first_needle + keys * len(self.alphabet) + values[:, : keys.shape[1]]
        extras = np.concatenate([needles[:, 1:], self.first_single + values[:, keys.shape[1] :]], axis=1)
        items, counts = self._mix(random, extras)
        text, starts = self._write(random, items, counts, needles[:, 0])
        labels = np.full((rows, self.options.length), UNASKED, dtype=np.int64)
        labels[:, -1] = values[:, 0]
        return np.concatenate([text, self.questions[keys[:, 0]]], axis=1) + 1, labels, starts

    def _deal(self, random: np.random.RandomState, rows: int) -> NDArray[np.int64]:
        """Return the values of the needles, then the single values. Together they are whole permutations of the alphabet."""
        kinds = len(self.alphabet)
        decks = -(-(self.options.distractors + 1) // kinds)
        return np.concatenate([subsets(random, rows, kinds, kinds) for _ in range(decks)], axis=1)

    def _mix(self, random: np.random.RandomState, extras: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Words and extras in random order, and the number of items of each row that leave room for the needle."""
        rows, most = len(extras), extras.shape[1]
        room = self.body - _WIDEST - self.sizes[extras].sum(axis=1)
        words = below(random, len(self.words), rows, int(room.max()) // 3)  # a word with its space has at least three bytes
        counts = (self.sizes[words].cumsum(axis=1) <= room[:, None]).sum(axis=1) + most
        chance = random.random_sample((rows, int(counts.max())))
        chance[np.arange(chance.shape[1]) >= counts[:, None]] = 2  # past the last item
        places = np.argsort(chance, axis=1, kind="stable")[:, :most]
        extra = np.zeros(chance.shape, dtype=bool)
        np.put_along_axis(extra, places, True, axis=1)
        next_word = np.minimum((~extra).cumsum(axis=1) - 1, words.shape[1] - 1).clip(min=0)
        items = np.take_along_axis(words, next_word, axis=1)
        np.put_along_axis(items, places, extras, axis=1)
        return items, counts

    def _write(
        self, random: np.random.RandomState, items: NDArray[np.int64], counts: NDArray[np.int64], needles: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Bytes of the items with the needle of each row inserted nearest to its depth, and the needle's start."""
        o, rows = self.options, len(items)
        depths = o.shallowest + random.random_sample(rows) * (o.deepest - o.shallowest)
        ends = np.concatenate([np.zeros((rows, 1), dtype=np.int64), self.sizes[items].cumsum(axis=1)], axis=1)
        off = np.abs(ends - depths[:, None] * (self.body - _WIDEST))
        off[np.arange(off.shape[1]) > counts[:, None]] = np.inf
        at = off.argmin(axis=1)
        starts = ends[np.arange(rows), at]
        column = np.arange(items.shape[1] + 1)
        shifted = np.take_along_axis(items, np.minimum(column - (column > at[:, None]), items.shape[1] - 1), axis=1)
        shifted[np.arange(rows), at] = needles
        sizes = np.where(column <= counts[:, None], self.sizes[shifted], 0)
        first = sizes.cumsum(axis=1) - sizes
        text = np.full((rows, self.body), ord(" "), dtype=np.int64)
        row, place, byte = np.nonzero(np.arange(_WIDEST) < sizes[:, :, None])
        text[row, first[row, place] + byte] = self.bytes[shifted[row, place], byte]
        return text, starts


@lru_cache(maxsize=1)
def _words() -> list[str]:
    """Words of two to seven letters, built from syllables, without the words of needle and question."""
    random = Random("haystack words").random  # Python guarantees the sequence of this method only
    words = dict.fromkeys(["what", "is"])
    while len(words) < WORDS + 2:
        syllables = ["bdfgklmnprstvz"[int(random() * 14)] + "aeiou"[int(random() * 5)] for _ in range(1 + int(random() * 3))]
        words["".join(syllables) + ("nrsl"[int(random() * 4)] if random() < 0.4 else "")] = None
    return list(words)[2:]
