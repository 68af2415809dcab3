"""The ListOps files that Long Range Arena released. Every expression is evaluated again while the files are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attn_zoo.contract import DamagedDataError, DataSet, Layout
from attn_zoo.data import open_text

from ..parts.expressions import VOCABULARY, value_of

ROWS = {"train": 96_000, "valid": 2_000, "test": 2_000}
SHORTEST, LONGEST = 501, 1_999
"""Smallest and largest number of tokens of a published expression. Round brackets, which only group arguments, do not count."""

FILES = {"train": "basic_train.tsv", "valid": "basic_val.tsv", "test": "basic_test.tsv"}
FOLDERS = ("lra_release/listops-1000", "lra_release/lra_release/listops-1000", "listops-1000")
"""Possible paths, below the data folder, of the folder that contains the files ``basic_*.tsv``."""

_IDS = {word: at for at, word in enumerate(VOCABULARY) if at}

Expressions = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""Token ids of expressions, padded with 0 at the end, and the values of these expressions."""


def read_expressions(path: Path, rows: int) -> Expressions:
    """Return the expressions in a file that has a header and ``rows`` more lines. A line is an expression, a tab, and the value.

    Round brackets only group arguments in pairs and do not change a value. These brackets are checked and left out.

    Raises:
        DamagedDataError: the header, the number of lines, an expression or a value is wrong.
    """
    ids = np.zeros((rows, LONGEST), dtype=np.uint8)
    labels = np.zeros(rows, dtype=np.uint8)
    count = 0
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            source, _, target = line.rstrip("\r\n").partition("\t")
            if number == 1:
                if (source, target) != ("Source", "Target"):
                    raise DamagedDataError(f"{path} must begin with 'Source', a tab and 'Target'; got {line[:60]!r}")
                continue
            if count == rows:
                raise DamagedDataError(f"{path} must hold {rows} expressions, but holds more")
            try:
                tokens, labels[count] = _expression(source, target)
            except ValueError as error:
                raise DamagedDataError(f"{path}, line {number}: {error}") from None
            ids[count, : len(tokens)] = np.frombuffer(tokens, dtype=np.uint8)
            count += 1
    if count < rows:
        raise DamagedDataError(f"{path} must hold {rows} expressions, but holds {count}; it is cut short")
    return ids, labels


def _expression(source: str, target: str) -> tuple[bytes, int]:
    words = source.replace("( ", "").replace(" )", "").split(" ")
    unknown = next((word for word in words if word not in _IDS), None)
    if unknown is not None:
        raise ValueError(f"{unknown[:40]!r} is not a symbol of ListOps")
    tokens = bytes(map(_IDS.__getitem__, words))
    value = value_of(tokens)
    if target != str(value):
        raise ValueError(f"the value of the expression is {value}, but the file says {target[:40]!r}")
    groups = len(words) - 1  # for each list, one for each argument and one for its end
    if not source.count("(") == source.count(")") == groups:
        raise ValueError(
            f"there must be {groups} opening and {groups} closing round brackets; got {source.count('(')} and {source.count(')')}"
        )
    if not SHORTEST <= len(tokens) <= LONGEST:
        raise ValueError(f"the expression must have {SHORTEST} to {LONGEST} tokens; got {len(tokens)}")
    return tokens, value


def _read(paths: Sequence[Path]) -> dict[str, Expressions]:
    return {split: read_expressions(path, ROWS[split]) for split, path in zip(FILES, paths, strict=True)}


LISTOPS: DataSet[dict[str, Expressions]] = DataSet(
    name="listops",
    title="LRA ListOps",
    source="Tay et al. 2020, Long Range Arena; after Nangia and Bowman 2018",
    licence="Apache-2.0 for the programs that made it; none given for the files",
    layouts=(
        Layout(
            "Long Range Arena's release", tuple(tuple(f"{folder}/{file}" for folder in FOLDERS) for file in FILES.values()), _read
        ),
    ),
    obtain="Unpack lra_release.gz, named at https://github.com/google-research/long-range-arena, into the data folder; "
    "no library fetches it",
)
