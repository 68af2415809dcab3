"""Readers of labelled texts: JSON lines, tab-separated tables, and folders of text files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attn_zoo.contract import DamagedDataError
from attn_zoo.data.files import open_text, read_bytes, read_jsonl, reading


class LabelledText(NamedTuple):
    """One example: one or two texts and their class."""

    label: int
    texts: tuple[str, ...]


Parts = dict[str, list[LabelledText]]
"""Examples of each split. The keys are the names of the splits, such as ``train`` and ``test``."""

_SURROGATE = re.compile("[\ud800-\udfff]")
"""Pattern of surrogate characters. JSON may contain them, but UTF-8 may not."""


def read_labelled_jsonl(
    path: Path, texts: Sequence[str], classes: Mapping[str, int], label: str = "label"
) -> Iterator[LabelledText]:
    """Yield the examples in a file of JSON lines.

    Args:
        texts: names of the text fields.
        classes: class index of each label.
        label: name of the label field.

    Raises:
        DamagedDataError: a line is not an object, lacks a field, or has an invalid value.
    """
    for number, row in enumerate(read_jsonl(path, [label, *texts]), 1):
        yield _row(f"{path}, line {number}", row[label], [row[name] for name in texts], classes)


def read_labelled_tsv(
    path: Path,
    texts: Sequence[int],
    label: int,
    classes: Mapping[str, int],
    columns: int,
    *,
    header: bool = True,
    skip_broken: bool = False,
) -> Iterator[LabelledText]:
    """Yield the examples in a tab-separated table. Quotation marks have no special meaning, as in GLUE's files.

    Args:
        texts, label: indices, from 0, of the text columns and of the label column.
        classes: class index of each label.
        columns: number of columns.
        header: True if the first line names the columns.
        skip_broken: True to skip lines with a wrong number of columns, for files that were published with such lines.

    Raises:
        DamagedDataError: a line has a wrong number of cells, or an unknown label.
    """
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            if header and number == 1:
                continue
            cells = line.rstrip("\r\n").split("\t")
            if len(cells) != columns and skip_broken:
                continue
            if len(cells) != columns:
                raise DamagedDataError(
                    f"{path}, line {number} must have {columns} columns, but has {len(cells)}. Fetch the file again, because "
                    "it is damaged"
                )
            yield _row(f"{path}, line {number}", cells[label], [cells[at] for at in texts], classes)


def read_text_folder(folder: Path, label: int) -> Iterator[LabelledText]:
    """Yield one example per ``.txt`` file of a folder, in the order of the file names. All examples have the class ``label``.

    Raises:
        DamagedDataError: the folder has no ``.txt`` file, or one of these files is not UTF-8.
    """
    paths = sorted(folder.glob("*.txt"))
    if not paths:
        raise DamagedDataError(f"{folder} must hold one .txt file for each text, but holds none")
    for path in paths:
        with reading(path, "UTF-8 text"):
            yield LabelledText(label, (read_bytes(path).decode("utf-8"),))


def require_count(where: object, rows: Iterable[LabelledText], count: int) -> list[LabelledText]:
    """Return the examples of a split as a list. Their number must be ``count``, the published number.

    Args:
        where: file or folder of the examples, for the message.

    Raises:
        DamagedDataError: the number of examples differs from ``count``.
    """
    found = list(rows)
    if len(found) != count:
        raise DamagedDataError(
            f"{where} must hold {count:,} examples, as published, but holds {len(found):,}. Fetch the data again"
        )
    return found


def read_parts(read: Callable[[Path], Iterable[LabelledText]], counts: Mapping[str, int], paths: Sequence[Path]) -> Parts:
    """Return the examples that ``read`` finds in the file or folder of each split. ``counts`` has the splits and their published
    numbers of examples.

    Raises:
        DamagedDataError: the number of examples of a split differs from the published one.
    """
    return {part: require_count(path, read(path), count) for (part, count), path in zip(counts.items(), paths, strict=True)}


def _row(where: str, label: Any, texts: Sequence[Any], classes: Mapping[str, int]) -> LabelledText:
    if str(label) not in classes:
        raise DamagedDataError(f"{where}: the label must be one of {', '.join(classes)}; got {label!r}")
    check_texts(where, texts)
    return LabelledText(classes[str(label)], tuple(texts))


def check_texts(where: str, texts: Iterable[object]) -> None:
    """Check that all values are strings that can be written as UTF-8.

    Args:
        where: file and line of the values, for the message.

    Raises:
        DamagedDataError: a value is not a string, or cannot be written as UTF-8.
    """
    for text in texts:
        if not isinstance(text, str):
            raise DamagedDataError(f"{where}: each text must be a string; got {type(text).__name__}")
        if _SURROGATE.search(text):
            raise DamagedDataError(
                f"{where} must be valid UTF-8 text, but holds a character that UTF-8 cannot encode (half of a surrogate pair)"
            )
