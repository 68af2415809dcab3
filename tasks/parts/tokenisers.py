"""Tokenisers: bytes, or runs of bytes that are learned from the training texts.

Both use the same special ids: 0 for padding, 1 for the separator between two texts, and 2 for the mask. The ids of the tokeniser
itself are increased by 3.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from .options import choice

SEPARATOR, MASK, FIRST = 1, 2, 3

INSTALL = "pip install 'attn-zoo[text]'"


class Tokens(Enum):
    """Kind of tokens."""

    bytes = "bytes"
    """Bytes of UTF-8."""
    bpe = "bpe"
    """Runs of bytes, learned from the training texts (byte pair encoding, as in RoBERTa)."""


DEFAULT_VOCABULARY = {Tokens.bytes: FIRST + 256, Tokens.bpe: 8_192}
"""Default size of the vocabulary."""


class Encoded(NamedTuple):
    """Token ids of a text, and for each token a number that identifies its word."""

    ids: Sequence[int]
    words: Sequence[int]


class Tokeniser(ABC):
    """Base class of tokenisers, which convert texts to ids from 3 to ``vocabulary`` - 1. The smaller ids are special."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    @property
    def dtype(self) -> type[np.generic]:
        """Dtype in which ids are stored."""
        return np.int16 if self.vocabulary < 2**15 else np.int32

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Return the token ids of each text."""

    @abstractmethod
    def encode_words(self, texts: Sequence[str]) -> list[Encoded]:
        """Return the token ids of each text, and for each token a number that identifies its word."""


class ByteTokeniser(Tokeniser):
    """Tokeniser whose tokens are the bytes of a text in UTF-8. A word includes the space before it."""

    _table = bytes((byte + FIRST) % 256 for byte in range(256))  # the bytes 253 to 255 do not occur in UTF-8

    def __init__(self) -> None:
        super().__init__(FIRST + 256)

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Return the token ids of each text."""
        return [text.encode("utf-8").translate(self._table) for text in texts]

    def encode_words(self, texts: Sequence[str]) -> list[Encoded]:
        """Return the token ids of each text, and for each token a number that identifies its word."""
        found = []
        for text, ids in zip(texts, self.encode(texts), strict=True):
            sizes = [len(piece.encode("utf-8")) for piece in re.findall(r"\s*\S+|\s+", text)]
            found.append(Encoded(ids, list(chain.from_iterable([number] * size for number, size in enumerate(sizes)))))
        return found


class LibraryTokeniser(Tokeniser):
    """Tokeniser of the library ``tokenizers``. The special tokens that the library adds around a text are left out."""

    def __init__(self, inner: Any) -> None:
        super().__init__(FIRST + 1 + max(inner.get_vocab().values(), default=-1))  # above the number of ids if some are left out
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """Return the token ids of each text."""
        return [[FIRST + i for i in one.ids] for one in self._inner.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_words(self, texts: Sequence[str]) -> list[Encoded]:
        """Return the token ids of each text, and for each token a number that identifies its word."""
        found = self._inner.encode_batch(list(texts), add_special_tokens=False)
        return [Encoded([FIRST + i for i in one.ids], one.word_ids) for one in found]


def make_tokeniser(tokens: Tokens, vocabulary: int, texts: Callable[[], Iterable[str]]) -> Tokeniser:
    """Return a tokeniser with at most ``vocabulary`` ids.

    Args:
        tokens: kind of tokens.
        vocabulary: largest number of ids, including those for padding, separator and mask.
        texts: function that returns the training texts. It is called only if the tokens are learned.

    Raises:
        ImportError: tokens are not bytes, and the library ``tokenizers`` is not installed.
    """
    return ByteTokeniser() if tokens is Tokens.bytes else LibraryTokeniser(_train_bpe(texts(), vocabulary - FIRST))


def tokeniser_recipe(tokens: Tokens, vocabulary: int) -> list[Any]:
    """Return everything that a tokeniser depends on, except the training texts, as plain data.

    Raises:
        ImportError: see ``make_tokeniser``.
    """
    return [tokens.value, *([] if tokens is Tokens.bytes else [vocabulary, _library().__version__])]


def check_tokens(owner: str, tokens: Any, vocabulary: int) -> Tokens:
    """Check the options ``tokens`` and ``vocabulary`` of a task, and return the kind of tokens. ``owner`` is the name of the task.

    Raises:
        ValueError: an option is out of its range.
    """
    kind = choice(f"{owner}.tokens", tokens, Tokens)
    if kind is Tokens.bytes and vocabulary not in (0, DEFAULT_VOCABULARY[kind]):
        raise ValueError(
            f"{owner}.vocabulary must be 0 (the default) if the tokens are bytes, because there are always "
            f"{DEFAULT_VOCABULARY[kind]} ids; got {vocabulary}"
        )
    if vocabulary and not FIRST + 256 <= vocabulary <= 2**20:
        raise ValueError(f"{owner}.vocabulary must be 0 (the default) or from {FIRST + 256} to {2**20:,}; got {vocabulary}")
    return kind


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(f"tokens=bpe needs the library tokenizers, which is not installed. Install it with: {INSTALL}") from error
    return tokenizers


def _train_bpe(texts: Iterable[str], size: int) -> Any:
    library = _library()
    found = library.Tokenizer(library.models.BPE())
    found.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    found.train_from_iterator(texts, library.trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=alphabet))
    return found
