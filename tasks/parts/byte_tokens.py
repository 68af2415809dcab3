"""Texts as bytes, and rows of equal length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 257
"""Padding, and a token for each byte: its value and one."""

_NEXT = bytes(range(1, 256)) + b"\0"
"""A byte's token. The byte 255 does not occur in UTF-8, so that tokens fit a byte."""


def byte_tokens(text: str, length: int) -> bytes:
    """Tokens of the first bytes of a text in UTF-8: each byte's value and one, which leaves 0 to padding."""
    return text[:length].encode("utf-8")[:length].translate(_NEXT)


def pad(sequences: Sequence[Sequence[int]], length: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Token ids in rows of equal length, 0 where a sequence has ended; longer ones are cut."""
    padded = np.zeros((len(sequences), length), dtype=dtype)
    for row, ids in zip(padded, sequences, strict=True):
        kept = ids[:length]
        row[: len(kept)] = np.frombuffer(kept, dtype=np.uint8) if isinstance(kept, bytes) else kept
    return padded
