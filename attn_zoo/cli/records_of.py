"""Functions that find and load the records that a command line names."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from attn_zoo import reference
from attn_zoo.escapes import terminal
from attn_zoo.records import Damaged, RecordError, RunRecord, Store, read_record
from attn_zoo.records.files import is_packed

FOLDER = "runs"
"""Default folder of records."""


def add_records(parser: argparse.ArgumentParser, *, default: str = FOLDER, or_packed: str = ", or a packed file of them") -> None:
    """Add the option ``--records`` to a parser. ``records_root`` returns the path that the user gives.

    Args:
        or_packed: words after ``folder of records`` in the help text, which say whether the option also accepts a packed file.
    """
    parser.add_argument("--records", metavar="FOLDER", help=f"folder of records{or_packed} (default: {default})")


def add_reference(parser: argparse.ArgumentParser, *, default: str = FOLDER) -> None:
    """Add the options ``--records`` and ``--reference`` to a parser. ``records_root`` returns the path that the user selects with
    either option."""
    add_records(parser, default=default)
    shipped = f"use records that came with the package: {' or '.join(reference.SETS)} (default: the first that is installed)"
    parser.add_argument("--reference", nargs="?", const="", metavar="NAME", help=shipped)


def records_root(parsed: argparse.Namespace) -> Path:
    """Return the path of the records that the command line names: a folder, or a packed file (one file with many records). By
    default it is ``FOLDER``, which may not exist.

    Raises:
        FileNotFoundError: the path that ``--records`` gives does not exist.
        ValueError: both ``--records`` and ``--reference`` are given, or the package does not have the reference records.
    """
    name = getattr(parsed, "reference", None)
    if name is None:
        root = Path(FOLDER if parsed.records is None else parsed.records)
        if parsed.records is not None and not root.exists():
            raise FileNotFoundError(
                f"--records must name an existing folder or packed file of records, but {str(root)!r} does not exist"
            )
        return root
    if parsed.records is not None:
        raise ValueError(
            "--records (your own records) and --reference (records of the package) cannot be given together. Leave one of them out"
        )
    there = reference.shipped()
    name = name or next(iter(there), "")
    if name not in there:
        raise ValueError(
            f"--reference must be {' or '.join(there) or 'left out, because this installation has no records'}; got {name!r}"
        )
    return reference.packed_file(name)


def loaded(root: str | Path) -> list[RunRecord]:
    """Return the records of a folder or packed file (one file with many records). Damaged files are left out, and a line on
    standard error names each of them with the reason.

    Raises:
        NotADirectoryError: ``root`` is a file but not a packed file.
        RecordError: ``root`` is a damaged packed file.
    """
    records, damaged = Store(root).load()
    name_left_out(damaged)
    return records


def name_left_out(damaged: Iterable[Damaged]) -> None:
    """Print one line on standard error for each damaged file of records. The line says why the file is left out."""
    for item in damaged:
        said = f"left out, because it is not a complete record: {item.path}: {item.reason}"
        print(f"attn-zoo: {terminal(said)}", file=sys.stderr)


def records_of(path: Path) -> tuple[list[RunRecord], list[Damaged]]:
    """Return the records at a path, and the files that are damaged. The path is a folder, a packed file (one file with many
    records), or the file of a single record.

    Raises:
        FileNotFoundError: the path does not exist.
        RecordError: the file is not a complete record.
    """
    if path.is_dir() or is_packed(path):
        return Store(path).load()
    if not path.exists():
        raise FileNotFoundError(f"{str(path)!r} does not exist; name a folder of records, or the file of one record")
    try:
        return [read_record(path)], []
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error
