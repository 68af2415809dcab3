"""Labelled texts, one or two a row, as three splits of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attn_zoo.contract import SPLITS
from attn_zoo.data.labelled_text import LabelledText, Parts

from .byte_tokens import pad
from .division import Row, divide, hashed_order
from .tokenisers import SEPARATOR, Tokeniser

MOST_VALID = 5_000
"""Training rows that validation takes unless said: a tenth of them, but no more than these."""

TEST_SHARE = 5
"""Of a set of which only one part is there, one row in so many is the test."""


def divided(parts: Parts, valid: int) -> dict[str, list[LabelledText]]:
    """The rows of each split; a part that stands alone is divided first, by the hash of its rows."""
    train, test = parts.get("train", []), parts["test"]
    if not train:
        order = hashed_order([content(row) for row in test])
        cut = len(order) // TEST_SHARE
        train, test = [test[place] for place in order[cut:]], [test[place] for place in order[:cut]]
    count = valid or min(len(train) // 10, MOST_VALID)
    division = divide([content(row) for row in train], [content(row) for row in test], count)
    return {
        split: [(test if split == "test" else train)[place] for place in places]
        for split, places in zip(SPLITS, division, strict=True)
    }


def content(row: LabelledText) -> Row:
    """Bytes of a row's texts, and its class."""
    return "\0".join(row.texts).encode("utf-8"), row.label


def encode_rows(tokeniser: Tokeniser, rows: Sequence[LabelledText], length: int) -> NDArray[Any]:
    """Ids of each row, its texts parted by a separator, cut and padded to ``length``."""
    dtype = np.int16 if tokeniser.vocabulary < 2**15 else np.int32
    found = np.zeros((len(rows), length), dtype=dtype)
    for start in range(0, len(rows), 1_000):
        some = rows[start : start + 1_000]
        encoded = [tokeniser.encode([row.texts[side] for row in some]) for side in range(len(some[0].texts))]
        found[start : start + len(some)] = pad([joined(texts, length) for texts in zip(*encoded, strict=True)], length, dtype)
    return found


def joined(texts: Sequence[Sequence[int]], length: int) -> list[int]:
    """One text, or two with a separator between, of at most ``length`` tokens: of two the longer is cut."""
    if len(texts) == 1:
        return list(texts[0][:length])
    first, second = texts
    room = length - 1
    kept = min(len(first), max(room - len(second), (room + 1) // 2))
    return [*first[:kept], SEPARATOR, *second[: room - kept]]
