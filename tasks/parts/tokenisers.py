"""Tokenisers: bytes, subwords that are learned from the training texts, or a tokeniser from a file.

All use the same special ids: 0 for padding, 1 for the separator between two texts, and 2 for the mask. The ids of the tokeniser
itself are increased by 3.
"""

from __future__ import annotations

import importlib.metadata
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attn_zoo.contract import MissingDataError
from attn_zoo.data import reading, sha256

from .options import choice

SEPARATOR, MASK, FIRST = 1, 2, 3

INSTALL = "pip install 'attn-zoo[text]'"


class Tokens(Enum):
    """Kind of tokens."""

    bytes = "bytes"
    """Bytes of UTF-8."""
    wordpiece = "wordpiece"
    """Subwords in lower case, learned from the training texts (WordPiece, as in BERT)."""
    bpe = "bpe"
    """Runs of bytes, learned from the training texts (byte pair encoding, as in RoBERTa)."""
    file = "file"
    """Tokens of the ``tokenizer.json`` in the option ``tokenizer``."""


DEFAULT_VOCABULARY = {Tokens.bytes: FIRST + 256, Tokens.wordpiece: 8_192, Tokens.bpe: 8_192, Tokens.file: 65_536}
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
        """Return the token ids of each text, and for each token a number that identifies its word. A token that belongs to no word
        counts as a word of its own."""
        found = self._inner.encode_batch(list(texts), add_special_tokens=False)
        return [Encoded([FIRST + i for i in one.ids], _whole_words(one.word_ids)) for one in found]

    def save(self, path: Path) -> None:
        """Write the tokeniser to a file ``tokenizer.json``, which the option ``tokens=file`` can read."""
        self._inner.save(str(path))


def _whole_words(words: Sequence[int | None]) -> list[int]:
    """Return the numbers of words. Each token without a word gets a number of its own."""
    return [-1 - place if word is None else word for place, word in enumerate(words)]


def make_tokeniser(tokens: Tokens, vocabulary: int, path: str, texts: Callable[[], Iterable[str]]) -> Tokeniser:
    """Return a tokeniser with at most ``vocabulary`` ids.

    Args:
        tokens: kind of tokens.
        vocabulary: largest number of ids, including those for padding, separator and mask.
        path: path of a ``tokenizer.json`` or of its folder, only for ``Tokens.file``.
        texts: function that returns the training texts. It is called only if the tokens are learned.

    Raises:
        ImportError: tokens are not bytes, and the library ``tokenizers`` is not installed.
        MissingDataError: ``tokenizer.json`` does not exist.
        DamagedDataError: the file is not a tokeniser.
        ValueError: the file's tokeniser has more ids than ``vocabulary``.
    """
    if tokens is Tokens.bytes:
        return ByteTokeniser()
    _library()
    if tokens is Tokens.file:
        found = LibraryTokeniser(_load(tokenizer_file(path)))
    else:
        train = _train_wordpiece if tokens is Tokens.wordpiece else _train_bpe
        found = LibraryTokeniser(train(texts(), vocabulary - FIRST))
    if found.vocabulary > vocabulary:
        raise ValueError(
            f"vocabulary must be at least {found.vocabulary}, because {path} has ids below {found.vocabulary - FIRST} and "
            f"attn-zoo adds {FIRST}; got {vocabulary}"
        )
    return found


def tokeniser_recipe(tokens: Tokens, vocabulary: int, path: str) -> list[Any]:
    """Return everything that a tokeniser depends on, except the training texts, as plain data.

    Raises:
        ImportError, MissingDataError: see ``make_tokeniser``.
    """
    if tokens is Tokens.bytes:
        return [tokens.value]
    _library()
    version = importlib.metadata.version("tokenizers")
    return [tokens.value, vocabulary, version, *([sha256(tokenizer_file(path))] if tokens is Tokens.file else [])]


def tokenizer_file(path: str) -> Path:
    """Return the path of a ``tokenizer.json``. ``path`` is this file or its folder.

    Raises:
        MissingDataError: the file does not exist.
    """
    place = Path(path).expanduser()
    file = place / "tokenizer.json" if place.is_dir() else place
    if not file.is_file():
        raise MissingDataError(
            f"tokens=file needs a tokenizer.json, but the file {file} does not exist. Set tokenizer=PATH to such a file or "
            "its folder"
        )
    return file


def check_tokens(owner: str, tokens: Any, vocabulary: int, path: str) -> Tokens:
    """Check the options ``tokens``, ``vocabulary`` and ``tokenizer`` of a task, and return the kind of tokens. ``owner`` is the
    name of the task.

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
    if (kind is Tokens.file) != bool(path):
        raise ValueError(
            f"{owner}.tokenizer must name a tokenizer.json if tokens=file, and be empty otherwise; got {path!r} with {kind.value}"
        )
    return kind


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            f"all tokens other than bytes need the library tokenizers, which is not installed. Install it with: {INSTALL}"
        ) from error
    return tokenizers


def _load(file: Path) -> Any:
    library = _library()
    with reading(file, "a tokenizer.json"):
        text = file.read_text("utf-8")
        try:
            return library.Tokenizer.from_str(text)
        except Exception as error:  # the library raises no specific type
            raise ValueError(str(error)) from error


def _train_bpe(texts: Iterable[str], size: int) -> Any:
    library = _library()
    found = library.Tokenizer(library.models.BPE())
    found.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    found.train_from_iterator(texts, library.trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=alphabet))
    return found


def _train_wordpiece(texts: Iterable[str], size: int) -> Any:
    """Train WordPiece with ids that do not depend on the library's internal order of words.

    The library's trainer numbers characters inside words in the order of a hash table that differs between processes, and these
    numbers break ties between equally frequent merges. Characters are therefore numbered beforehand, as special tokens, and the
    learned vocabulary is moved to a tokeniser without special tokens.
    """
    library = _library()
    kept = list(texts)
    normaliser = library.normalizers.BertNormalizer(lowercase=True)
    found = _wordpiece(library, library.models.WordPiece(unk_token="[UNK]"), normaliser)
    inside = sorted({sign for text in kept for sign in normaliser.normalize_str(text) if not sign.isspace()})
    special = ["[UNK]", *(f"##{sign}" for sign in inside)]
    found.train_from_iterator(kept, library.trainers.WordPieceTrainer(vocab_size=size, show_progress=False, special_tokens=special))
    return _wordpiece(library, library.models.WordPiece(found.get_vocab(), unk_token="[UNK]"), normaliser)


def _wordpiece(library: Any, model: Any, normaliser: Any) -> Any:
    found = library.Tokenizer(model)
    found.normalizer = normaliser
    found.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    return found
