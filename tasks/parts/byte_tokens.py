"""Byte tokens of texts, and padding to rows of equal length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 257
"""Size of the vocabulary: padding, and a token for each byte, its value plus one."""

_NEXT = bytes(range(1, 256)) + b"\0"
"""Translation table from bytes to tokens. Byte 255 does not occur in UTF-8, so that tokens fit into a byte."""


def byte_tokens(text: str, length: int) -> bytes:
    """Return the tokens of the first ``length`` bytes of a text in UTF-8. A token is the value plus one, because 0 is padding."""
    return text[:length].encode("utf-8")[:length].translate(_NEXT)


def pad(sequences: Sequence[Sequence[int]], length: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Return token ids in rows of equal length, padded with 0. Longer sequences are cut."""
    padded = np.zeros((len(sequences), length), dtype=dtype)
    for row, ids in zip(padded, sequences, strict=True):
        kept = ids[:length]
        row[: len(kept)] = np.frombuffer(kept, dtype=np.uint8) if isinstance(kept, bytes) else kept
    return padded
