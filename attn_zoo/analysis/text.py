"""Text for language models, from files or from Python's language reference."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from platform import python_version
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from attn_zoo.data import open_text, read_jsonl
from attn_zoo.data.labelled_text import check_texts

_SUFFIXES = (".txt", ".md", ".rst", ".jsonl")

CHARACTERS_PER_TOKEN = 16
"""Upper bound on characters per token in ordinary text. It limits the text that is given to a tokenizer."""


def read_text(path: Path) -> str:
    """Return the text of a file. If ``path`` is a folder, return the text of all .txt, .md, .rst and .jsonl files in it and its
    subfolders, sorted by path and separated by blank lines.

    Files may be compressed with xz or gzip. Each line of a .jsonl file is an object whose field ``text`` is one document.

    Raises:
        FileNotFoundError: the path does not exist, or the folder holds none of these files.
        DamagedDataError: a file is not UTF-8, is not compressed as its suffix states, or has a line without ``text``.
    """
    if not path.exists():
        raise FileNotFoundError(f"the file or folder {path} does not exist. Name an existing text file or folder")
    files = sorted(file for file in path.rglob("*") if file.is_file() and _kind(file) in _SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(
            f"the folder {path} must hold text files, but none of its file names ends in {', '.join(_SUFFIXES)} (or one of "
            "these with .xz or .gz)"
        )
    return "\n\n".join(document for file in files for document in _documents(file))


def default_text() -> tuple[str, str]:
    """Return the language reference that comes with Python, and a description of it.

    Raises:
        FileNotFoundError: this Python comes without its language reference.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise FileNotFoundError(
            "the default text (pydoc_data, the Python Language Reference) is not part of this Python. Give a text of your own"
        ) from None
    return "\n\n".join(topics[name] for name in sorted(topics)), f"language reference of Python {python_version()} (pydoc_data)"


def stretches(text: str, count: int) -> list[str]:
    """Return a text cut into ``count`` parts of nearly equal length. Each part begins with a whole word."""
    bounds = [_next_word(text, at * len(text) // count) for at in range(count)] + [len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


def cut(
    text: str, tokenizer: Any, length: int, places: int, *, following: int = 1, what: str = "the text"
) -> Int[Tensor, "passages length"]:
    """Return passages of exactly ``length`` tokens, including special tokens. They are taken from the beginnings of equally long
    parts of the text.

    Args:
        tokenizer: fast tokenizer of transformers.
        places: number of parts of the text.
        following: number of consecutive passages from each part. They are neighbours in the result.
        what: name of the text, for the error message.

    Raises:
        ValueError: the text is too short.
    """
    rows: list[list[int]] = []
    for at, stretch in enumerate(stretches(text, places), 1):
        windows: list[list[int]] = []
        for part in (stretch[: CHARACTERS_PER_TOKEN * length * following], stretch):
            found = tokenizer(part, truncation=True, max_length=length, return_overflowing_tokens=True)["input_ids"]
            windows = [row for row in found if len(row) == length][:following]
            if len(windows) == following:
                break
        if len(windows) < following:
            raise ValueError(
                f"{what} is too short: each of its {places} parts must give {following * length} tokens, but part {at} gives "
                f"{sum(map(len, found))}. Give more text, or ask for fewer or shorter passages"
            )
        rows += windows
    return torch.tensor(rows)


def short_path(path: Path) -> str:
    """Return the last two parts of a path, which identify data without showing where they are stored."""
    return "/".join(path.resolve().parts[-2:])


def _next_word(text: str, at: int) -> int:
    if at == 0:
        return 0
    while at < len(text) and not text[at - 1].isspace():
        at += 1
    return at


def _kind(file: Path) -> str:
    suffixes = [suffix for suffix in file.suffixes if suffix not in (".xz", ".gz")]
    return suffixes[-1] if suffixes else ""


def _documents(file: Path) -> Iterator[str]:
    if _kind(file) != ".jsonl":
        with open_text(file) as text:
            yield text.read()
        return
    for number, row in enumerate(read_jsonl(file, ["text"]), 1):
        check_texts(f"{file}, line {number}", [row["text"]])
        yield row["text"]
