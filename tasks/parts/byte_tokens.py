"""Conversion of texts to byte tokens, and padding of sequences to equal length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 257
"""Size of the vocabulary: one token for padding (0), and one for each value of a byte (the value plus one)."""

_NEXT = bytes(range(1, 256)) + b"\0"
"""Translation table from bytes to tokens. Tokens fit into a byte, because byte 255 does not occur in UTF-8."""


def byte_tokens(text: str, length: int) -> bytes:
    """Return one token for each of the first ``length`` bytes of a text in UTF-8. A token is the value of the byte plus one,
    because 0 is padding."""
    return text[:length].encode("utf-8")[:length].translate(_NEXT)


def pad(sequences: Sequence[Sequence[int]], length: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Return the sequences of token ids as an array (sequences, ``length``). Shorter sequences are padded with 0, and longer ones
    are cut."""
    padded = np.zeros((len(sequences), length), dtype=dtype)
    for row, ids in zip(padded, sequences, strict=True):
        kept = ids[:length]
        row[: len(kept)] = np.frombuffer(kept, dtype=np.uint8) if isinstance(kept, bytes) else kept
    return padded
