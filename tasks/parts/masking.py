"""Masks for masked language modelling: which tokens must be predicted, and what replaces them in the input."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attn_zoo.contract import UNASKED

from .tokenisers import FIRST, MASK

HIDDEN, ALTERED = 0.8, 0.9
"""Limits of a uniform random number for each token to predict. If the number is below ``HIDDEN``, the mask replaces the token;
else, if it is below ``ALTERED``, a random token does. Otherwise, the token is unchanged."""


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
