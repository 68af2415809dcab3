"""Splits of labelled texts, and their token ids. An example has one or two texts."""

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
"""Largest default number of validation examples. The default is a tenth of the training examples, but at most this number."""

TEST_SHARE = 5
"""If only one split is published, one example in ``TEST_SHARE`` is a test example."""


def divided(parts: Parts, valid: int) -> dict[str, list[LabelledText]]:
    """Return the examples of each split. If only one split is published, it is divided into training and test examples by a hash
    of each example. The validation split is cut from the training examples."""
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
    """Return the texts of an example as bytes, and its class."""
    return "\0".join(row.texts).encode("utf-8"), row.label


def encode_rows(tokeniser: Tokeniser, rows: Sequence[LabelledText], length: int) -> NDArray[Any]:
    """Return the token ids of each example as an array (examples, ``length``). There is a separator between two texts. Longer
    sequences are cut, and shorter ones are padded."""
    ids = np.zeros((len(rows), length), dtype=tokeniser.dtype)
    for start in range(0, len(rows), 1_000):
        some = rows[start : start + 1_000]
        encoded = [tokeniser.encode([row.texts[side] for row in some]) for side in range(len(some[0].texts))]
        sequences = [joined(texts, length) for texts in zip(*encoded, strict=True)]
        ids[start : start + len(some)] = pad(sequences, length, tokeniser.dtype)
    return ids


def joined(texts: Sequence[Sequence[int]], length: int) -> list[int]:
    """Return at most ``length`` tokens: those of one text, or those of two texts with a separator between them. Two texts that are
    too long share the tokens equally, unless one of them needs fewer."""
    if len(texts) == 1:
        return list(texts[0][:length])
    first, second = texts
    room = length - 1
    kept = min(len(first), max(room - len(second), (room + 1) // 2))
    return [*first[:kept], SEPARATOR, *second[: room - kept]]
