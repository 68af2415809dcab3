"""Data sets of the Hugging Face hub, kept as JSON lines or text, so that they can be read later without that library."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def fetch_rows(
    name: str,
    files: Mapping[str, Path],
    fields: Mapping[str, str],
    *,
    config: str | None = None,
    rows: Mapping[str, int] | None = None,
) -> None:
    """Download splits of a data set, whose files the library checks itself, and write each as JSON lines.

    A file appears under its name only when it is whole.

    Args:
        name: on the hub, such as ``stanfordnlp/imdb``.
        files: where each split goes.
        fields: columns taken, and the field that each becomes.
        config: the part of a collection, such as ``sst2``.
        rows: how many each split must have.

    Raises:
        ImportError: the library is not installed; the message says how it is.
        ValueError: a split has another number of rows, or lacks a column.
    """
    for split, path in files.items():
        table = _fetch(name, config, split, list(fields))
        found = [{field: row[column] for column, field in fields.items()} for row in table]
        expected = (rows or {}).get(split)
        if expected is not None and len(found) != expected:
            raise ValueError(f"{name}, split {split} came with {len(found)} rows where {expected} were published; nothing was kept")
        write_jsonl(path, found)


def fetch_lines(name: str, files: Mapping[str, Path], *, config: str | None = None) -> None:
    """Download splits of running text, one line a row in the column ``text``, and write each as text.

    Raises:
        ImportError: the library is not installed; the message says how it is.
        ValueError: a split lacks the column.
    """
    for split, path in files.items():
        table = _fetch(name, config, split, ["text"])
        _write(path, (row["text"] if row["text"].endswith("\n") else row["text"] + " \n" for row in table))


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """One object a line, UTF-8; the file appears under its name only when it is whole."""
    _write(path, (json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _fetch(name: str, config: str | None, split: str, columns: Sequence[str]) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError("fetching from the Hugging Face hub needs its library: pip install 'attn-zoo[text]'") from error
    table = load_dataset(name, config, split=split)
    lacking = set(columns) - set(table.column_names)
    if lacking:
        raise ValueError(f"{name}, split {split} lacks {', '.join(sorted(lacking))}; it has {', '.join(table.column_names)}")
    return table


def _write(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
        Path(beside).chmod(0o644)  # a temporary file is its owner's alone
        os.replace(beside, path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
