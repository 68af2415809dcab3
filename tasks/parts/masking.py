"""Masks for language modelling: which tokens a model must tell, and what it sees in their place."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attn_zoo.contract import UNASKED

from .tokenisers import FIRST, MASK

HIDDEN, ALTERED = 0.8, 0.9
"""Of the tokens asked, these shares see the mask, and that or another token; the rest sees itself."""


class Masked(NamedTuple):
    """What a model sees, and what it must tell."""

    ids: NDArray[Any]
    labels: NDArray[Any]


def mask(ids: NDArray[Any], words: NDArray[np.int64], vocabulary: int, share: float, seed: list[int]) -> Masked:
    """Ask for a share of the tokens of each row, at least one: whole words, in random order, until there are enough.

    Only ``random_sample`` of numpy's frozen generator is drawn from, and numbers are only compared, so
    that every machine and version makes the same masks.

    Args:
        ids: (rows, length), 0 where a row has ended.
        words: (rows, length), the place in its row of the first token of each token's word; each token's
            own place where tokens are asked one by one.
        vocabulary: ids below which another token is drawn.
        share: of the tokens of each row, rounded down.
    """
    rows, length = ids.shape
    draw = np.random.RandomState(seed).random_sample
    places = np.arange(length)
    of_words = np.take_along_axis(draw((rows, length)), words, axis=1)
    of_words[ids == 0] = 2.0  # padding comes last
    order = np.argsort(of_words, axis=1, kind="stable")  # words in random order, their tokens together
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(places, order.shape), axis=1)
    enough = np.maximum(1, ((ids != 0).sum(axis=1) * share).astype(np.int64))
    asked = (np.take_along_axis(rank, words, axis=1) < enough[:, None]) & (ids != 0)
    fate, other = draw((rows, length)), FIRST + (draw((rows, length)) * (vocabulary - FIRST)).astype(np.int64)
    seen = np.where(fate < HIDDEN, MASK, np.where(fate < ALTERED, other, ids))
    return Masked(np.where(asked, seen, ids).astype(ids.dtype), np.where(asked, ids, UNASKED).astype(ids.dtype))


def first_of_word(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Place of the first token of the word that each token belongs to, within its row; equal neighbours are one word."""
    begins = np.ones(words.shape, dtype=bool)
    begins[:, 1:] = words[:, 1:] != words[:, :-1]
    return np.maximum.accumulate(np.where(begins, np.arange(words.shape[1]), 0), axis=1)
