"""Masked language modelling: predict the masked tokens in WikiText-2, novels or any text files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from attn_zoo.contract import UNASKED, Level, Split, TaskSpec
from attn_zoo.contract import Tokens as TokenInputs
from attn_zoo.registry import register_task

from .datasets.running_text import NOVELS, WIKITEXT2
from .parts.levels import smoke
from .parts.options import require_range
from .parts.running import LOCATIONS, Arrays, TextOptions, Texts, TextTask, require_fresh
from .parts.tokenisers import FIRST, MASK, Tokeniser

FEWEST = 8
"""Number of tokens of the shortest text that is used; shorter ones give too little context."""
NEAR = 16
"""Largest distance in tokens at which a short convolution could copy a token."""
RARE = 1 / 2_000
"""Largest relative frequency of a rare token in the training text."""
HIDDEN, ALTERED = 0.8, 0.9
"""Limits of a uniform random number for each token to predict. If the number is below ``HIDDEN``, the mask replaces the token;
else, if it is below ``ALTERED``, a random token does. Otherwise, the token is unchanged."""
BLOCK = 1_024
"""Number of sequences that are searched for repetitions at a time."""


@dataclass
class Options(TextOptions):
    """Options of the task ``masked_language``."""

    share: float = 0.15
    """Share of a sequence's tokens that are predicted."""
    whole_words: bool = False
    """True to mask whole words: all tokens of a word are predicted, or none."""
    draws: int = 1
    """Number of copies of each training sequence, each with its own mask."""
    valid_tokens: int = 0
    """Number of validation tokens; 0 means all. The same share of every text is used, from the beginning of the text."""
    test_tokens: int = 0
    """Number of test tokens, which are chosen in the same way as validation tokens."""

    def __post_init__(self) -> None:
        self.require_texts("masked_language")
        require_range("masked_language.share", self.share, 0.01, 0.5, "is a share of the tokens")
        require_range("masked_language.draws", self.draws, 1, 100, "counts masked copies of a sequence")
        for name in ("valid_tokens", "test_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"masked_language.{name} must be 0 (all) or a number of tokens; got {getattr(self, name)}")


@register_task(
    "masked_language",
    title="Masked language modelling",
    version="1",
    summary="Predict masked tokens of running text. Rare tokens that also occur at a distant place have a separate perplexity.",
    source="Devlin et al. 2019, arXiv:1810.04805, Section 3.1; texts of Merity et al. 2016, or of your own",
    licence="of the texts: CC BY-SA 3.0 for WikiText-2, PSF-2.0 for Python",
    options=Options,
    locations=LOCATIONS,
    metric="perplexity",
    datasets=(WIKITEXT2, NOVELS),
    levels={
        "cpu": Level(
            model={"dim": 64, "depth": 2, "heads": 2, "mlp_ratio": 2.0},
            budget={"steps": 600, "batch_size": 32, "learning_rate": 2e-3, "warmup_steps": 60, "evaluate_every": 100},
            differs="2 layers of width 64 in place of 12 of width 768, bytes in place of pieces of words, and fewer steps",
        ),
        "smoke": smoke({"length": 32, "train": 500}, steps=4, dim=16, depth=1),
        "lra": Level(
            model={"dim": 768, "depth": 12, "heads": 12, "mlp_ratio": 4.0, "dropout": 0.1},
            budget={
                "steps": 250_000,
                "batch_size": 64,
                "learning_rate": 1e-4,
                "weight_decay": 0.01,
                "warmup_steps": 10_000,
                "evaluate_every": 5_000,
            },
            options={"length": 512, "tokens": "bpe", "vocabulary": 32_768, "draws": 10},
            differs="the paper's size and steps on few of its 3.3 thousand million words, and a batch for one GPU in place of 64",
        ),
    },
    variants={
        "words": {"files": "novels", "length": 128, "whole_words": True, "draws": 2, "train": 1_000},
        "novels": {"files": "novels", "length": 64, "train": 2_000},
    },
)
class MaskedLanguage(TextTask):
    """Prediction of masked tokens in running text.

    A masked token, such as a name, counts as ``repeated`` if it is rare in the training text and also occurs in the visible part of
    the sequence, but only more than 16 tokens away. Attention can copy such a token; a short convolution cannot. All other masked
    tokens are called the ``rest``.

    Source: as in BERT, 15 % of the tokens of each sequence are predicted. Of these tokens, 80 % are replaced by the mask, 10 % by a
        random token, and 10 % are unchanged. The Linformer paper trains in this way on books and an encyclopedia, and shows curves
        of perplexity.
    Differs: masks are drawn once. The option ``draws`` is the number of masks for each training sequence; other sequences have one
        mask. A text is cut into sequences of nearly equal length, at most ``length``, so that no sequence is a short remainder. No
        sequence contains two texts, and there is no next-sentence prediction. With ``whole_words``, the last masked word can
        increase the share of masked tokens slightly. The options ``valid_tokens`` and ``test_tokens`` limit the texts for
        validation and test; they choose the same texts at every ``length``. Perplexity is per token, so compare it only between
        runs with the same kind of token. With ``files=novels``, one author in eight is for validation and one in eight for the
        test, chosen by a hash of the names. The texts of ``files=python`` and ``files=folder`` are divided in the same way by file.
        ``files=python`` is the code of Python's standard library as installed, without tests. It needs no data folder, but the data
        differ between versions of Python. Sequences that also occur in a later split are left out.
    """

    options: Options
    padded = True

    @property
    def spec(self) -> TaskSpec:
        """Specification of the task: tokens, padded at the end to ``length``, with labels at the positions to predict."""
        return TaskSpec(TokenInputs(self.options.ids), self.options.length, classes=self.options.ids, labels="position")

    def slices(self, split: Split) -> dict[str, Bool[Tensor, "examples length"]]:
        """Return two masks of the tokens to predict: ``repeated`` for rare tokens that the sequence shows only at distant
        positions, and ``rest`` for all others."""
        made = self.made()
        shown, asked = made["train ids"], made["train labels"]
        frequency = np.bincount(np.where(asked == UNASKED, shown, asked).ravel(), minlength=self.options.ids)
        frequency[0] = 0  # padding
        rare = frequency <= RARE * frequency.sum()
        labels = made[f"{split} labels"]
        repeated = shown_far_away(made[f"{split} ids"], labels, rare)
        return {"repeated": torch.from_numpy(repeated), "rest": torch.from_numpy((labels != UNASKED) & ~repeated)}

    def arrays(self, texts: Texts, tokeniser: Tokeniser) -> Arrays:
        """Return the masked sequences and the labels of each split. Sequences that also occur in a later split are left out.

        Raises:
            ValueError: every sequence of a split also occurs in a later split.
        """
        o = self.options
        made: Arrays = {}
        taken: set[bytes] = set()
        for number, split, most in ((2, "test", o.test_tokens), (1, "valid", o.valid_tokens), (0, "train", 0)):
            ids, words = _packed(tokeniser, texts[split], o.length, most)
            keys = [row.tobytes() for row in ids]
            fresh = np.array([key not in taken for key in keys])
            taken.update(keys)
            require_fresh("masked_language", split, int(fresh.sum()))
            ids, words = ids[fresh], words[fresh]
            if split == "train":
                order = np.random.RandomState([o.data_seed, 3]).permutation(len(ids))[: o.train or None]
                ids, words = ids[order], words[order]
            copies = range(o.draws if split == "train" else 1)
            places = words if o.whole_words else np.broadcast_to(np.arange(o.length), ids.shape)
            masks = [mask(ids, places, tokeniser.vocabulary, o.share, [o.data_seed, number, copy]) for copy in copies]
            seen, labels = (np.concatenate([getattr(one, what) for one in masks]) for what in ("ids", "labels"))
            kept = np.random.RandomState([o.data_seed, 4, number]).permutation(len(seen))
            made[f"{split} ids"], made[f"{split} labels"] = seen[kept], labels[kept]
        return made


def shown_far_away(ids: NDArray[Any], labels: NDArray[Any], wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of the predicted tokens that also occur in the input of their sequence, but only more than ``NEAR`` positions
    away.

    Args:
        ids: (examples, length), the input tokens.
        labels: (examples, length), the tokens to predict; ``UNASKED`` at positions where no token is to be predicted.
        wanted: (vocabulary,), True for the tokens that the mask may contain, such as rare ones.
    """
    found = np.zeros(ids.shape, dtype=bool)
    for start in range(0, len(ids), BLOCK):
        asked = labels[start : start + BLOCK]
        shown = np.where(asked == UNASKED, ids[start : start + BLOCK], UNASKED)
        row, place = np.nonzero((asked != UNASKED) & wanted[np.where(asked == UNASKED, 0, asked)])
        equal = shown[row] == asked[row, place][:, None]
        near = np.abs(np.arange(ids.shape[1]) - place[:, None]) <= NEAR
        found[start + row, place] = equal.any(axis=1) & ~(equal & near).any(axis=1)
    return found


def _packed(tokeniser: Tokeniser, texts: Sequence[str], length: int, most: int = 0) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the ids of sequences of nearly equal length that are cut from each text, and for each token the first position of its
    word.

    Args:
        most: number of tokens of all texts together; 0 for all. The same share of every text is used, from its beginning.
    """
    encoded = [np.array([list(one.ids), one.words], dtype=np.int64) for text in texts for one in tokeniser.encode_words([text])]
    share = min(1.0, most / max(1, sum(one.shape[1] for one in encoded))) if most else 1.0
    kept = [one[:, : int(one.shape[1] * share)] for one in encoded]
    rows = [row for one in kept if one.shape[1] >= FEWEST for row in np.array_split(one, -(-one.shape[1] // length), axis=1)]
    if not rows:
        raise ValueError(
            f"masked_language: each split must have a text of at least {FEWEST} tokens, but one split has no such text. Give "
            "longer texts, or raise valid_tokens or test_tokens"
        )
    padded = np.zeros((2, len(rows), length), dtype=np.int64)
    padded[1] = -(2**40) - np.arange(length)  # padding belongs to no word
    for place, row in enumerate(rows):
        padded[:, place, : row.shape[1]] = row
    return padded[0].astype(tokeniser.dtype), first_of_word(padded[1])


class Masked(NamedTuple):
    """Masked inputs and the labels that belong to them."""

    ids: NDArray[Any]
    labels: NDArray[Any]


def mask(ids: NDArray[Any], words: NDArray[np.int64], vocabulary: int, share: float, seed: list[int]) -> Masked:
    """Return the ids with masked tokens, and the labels. At least one token per row is masked.

    Words are masked as a whole, in random order, until there are enough tokens. Masks are equal on every machine and in every
    version of numpy.

    Args:
        ids: (rows, length), token ids, padded with 0.
        words: (rows, length), for each token the position of the first token of its word. To mask single tokens, give each token
            its own position.
        vocabulary: upper bound (exclusive) of the ids of random tokens.
        share: share of the tokens of each row that is masked, rounded down.
        seed: seed of the generator.
    """
    rows, length = ids.shape
    draw = np.random.RandomState(seed).random_sample  # frozen by numpy: equal in every version
    places = np.arange(length)
    of_words = np.take_along_axis(draw((rows, length)), words, axis=1)
    of_words[ids == 0] = 2.0  # padding comes last
    order = np.argsort(of_words, axis=1, kind="stable")  # words in random order, their tokens together
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(places, order.shape), axis=1)
    enough = np.maximum(1, ((ids != 0).sum(axis=1) * share).astype(np.int64))
    selected = (np.take_along_axis(rank, words, axis=1) < enough[:, None]) & (ids != 0)
    uniform, other = draw((rows, length)), FIRST + (draw((rows, length)) * (vocabulary - FIRST)).astype(np.int64)
    replaced = np.where(uniform < HIDDEN, MASK, np.where(uniform < ALTERED, other, ids))
    return Masked(np.where(selected, replaced, ids).astype(ids.dtype), np.where(selected, ids, UNASKED).astype(ids.dtype))


def first_of_word(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each token, the position at which the word of this token begins. ``words`` has a number for each token; adjacent
    tokens with equal numbers are one word."""
    begins = np.ones(words.shape, dtype=bool)
    begins[:, 1:] = words[:, 1:] != words[:, :-1]
    return np.maximum.accumulate(np.where(begins, np.arange(words.shape[1]), 0), axis=1)
