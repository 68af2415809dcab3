"""Downloads of data sets from the Hugging Face hub. The data are saved as JSON lines or text, which can be read without the hub's
library."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attn_zoo.data.files import replacing


def fetch_rows(
    name: str,
    files: Mapping[str, Path],
    fields: Mapping[str, str],
    *,
    config: str | None = None,
    rows: Mapping[str, int] | None = None,
) -> None:
    """Download splits of a data set from the Hugging Face hub, and write each split as a file of JSON lines. The library
    ``datasets`` verifies the download. A file appears only when it is complete.

    Args:
        name: name on the hub, such as ``stanfordnlp/imdb``.
        files: for each split, the path of the file to write.
        fields: for each column to read, the name of its field in the JSON lines.
        config: name of a data set within a collection, such as ``sst2``.
        rows: required number of rows of each split; None for any number.

    Raises:
        ImportError: ``datasets`` is not installed.
        ValueError: a split has a wrong number of rows, or lacks a column.
    """
    for split, path in files.items():
        table = _fetch(name, config, split, list(fields))
        items = [{field: row[column] for column, field in fields.items()} for row in table]
        expected = (rows or {}).get(split)
        if expected is not None and len(items) != expected:
            raise ValueError(
                f"{name}: the split {split} must have {expected} examples, as published, but was sent with {len(items)}, so "
                f"{path} was not written. Fetch the data again, or put the published files into the data folder"
            )
        write_jsonl(path, items)


def fetch_lines(name: str, files: Mapping[str, Path], *, config: str | None = None) -> None:
    """Download splits of running text from the Hugging Face hub, and write each split as a text file. The text is read from the
    column ``text``, and each row becomes one line.

    Raises:
        ImportError: the library ``datasets`` is not installed.
        ValueError: a split lacks the column ``text``.
    """
    for split, path in files.items():
        table = _fetch(name, config, split, ["text"])
        _write(path, (row["text"] if row["text"].endswith("\n") else row["text"] + " \n" for row in table))


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write objects as JSON lines in UTF-8. The file appears only when it is complete."""
    _write(path, (json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _fetch(name: str, config: str | None, split: str, columns: Sequence[str]) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError("fetching from the Hugging Face hub needs its library: pip install 'attn-zoo[text]'") from error
    table = load_dataset(name, config, split=split)
    lacking = set(columns) - set(table.column_names)
    if lacking:
        raise ValueError(
            f"{name}: the split {split} must have the columns {', '.join(sorted(lacking))}; it has only "
            f"{', '.join(table.column_names)}"
        )
    return table


def _write(path: Path, lines: Iterable[str]) -> None:
    with replacing(path) as file:
        file.writelines(line.encode("utf-8") for line in lines)
    path.chmod(0o644)  # the new file is readable by its owner only
