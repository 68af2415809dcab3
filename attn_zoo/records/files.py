"""Files of records: JSON files with one record each, and packed files with many records.

Files are checked when they are read, and written as a whole.
"""

from __future__ import annotations

import json
import lzma
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

from attn_zoo.records.record import MOST_BYTES, EditedError, RecordError, RunRecord, parse
from attn_zoo.records.spec import writable

HALF = ".half"
"""Suffix of incomplete files."""
SUFFIX = ".jsonl.xz"
"""Suffix of every packed file's name."""
NAME = f"records{SUFFIX}"
"""Name of the packed file of a folder."""


def read_record(path: Path, source: str | None = None) -> RunRecord:
    """Return the record in a file, after checking it.

    Args:
        source: file name to store in the record; by default the name of ``path``.

    Raises:
        RecordError: the file is not a complete record, or was changed after it was written.
        OSError: the file cannot be read.
    """
    return RunRecord.from_text(read_text(path), path.name if source is None else source)


def read_text(path: Path) -> str:
    """Return the text of a regular file.

    Raises:
        RecordError: the path is a folder, pipe or device, or the file is too large or not UTF-8.
        OSError: the file cannot be read.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise RecordError("a record must be a regular file")
    if found.st_size > MOST_BYTES:
        raise RecordError(f"a record must have at most {MOST_BYTES:,} bytes; got {found.st_size:,}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"the file is not readable as JSON: {error}") from error


def is_packed(path: Path) -> bool:
    """Return True if ``path`` is a packed file, which is one compressed file with many records."""
    return path.name.endswith(SUFFIX) and path.is_file()


def pack(records: Iterable[RunRecord], path: Path) -> None:
    """Write records to the packed file ``path``, with all their fields and the names of the files that they came from.

    Raises:
        ValueError: the name of ``path`` does not end in ``SUFFIX``, two records come from the same file, or a record does not come
            from a file in the folder of ``path``.
        RecordError: the records have too many bytes for one file.
        OSError: the file cannot be written.
    """
    if not path.name.endswith(SUFFIX):
        raise ValueError(f"the name of a packed file must end in {SUFFIX}; got {path.name!r}")
    lines = [{"source": writable(record.source), "record": record.to_dict()} for record in records]
    _check_sources([line["source"] for line in lines])
    text = "".join(json.dumps(line, sort_keys=True, allow_nan=False, separators=(",", ":")) + "\n" for line in lines)
    if len(text) > MOST_BYTES:
        raise RecordError(
            f"the records of a packed file must have at most {MOST_BYTES:,} bytes; those of {path.name} have {len(text):,}. Pack "
            "fewer records"
        )
    write_whole(path, lzma.compress(text.encode(), preset=lzma.PRESET_EXTREME | 9))


def unpack(path: Path, place: str = "") -> list[RunRecord]:
    """Return the records in a packed file.

    Args:
        place: path of the packed file's folder relative to the folder of records, which is put before the sources of the records.

    Raises:
        OSError: the file cannot be read.
        RecordError: the file is damaged.
    """
    found = path.stat()
    return list(_unpacked(path, place, found.st_mtime_ns, found.st_size))


@lru_cache(maxsize=4)  # a sweep asks for each of its runs
def _unpacked(path: Path, place: str, changed: int, size: int) -> Sequence[RunRecord]:
    try:
        with lzma.open(path) as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise RecordError(f"it has more than {MOST_BYTES:,} bytes")
        lines = [parse(line) for line in text.decode().splitlines()]
        _check_sources([line["source"] for line in lines])
        return tuple(RunRecord.from_dict(line["record"], PurePath(place, line["source"]).as_posix()) for line in lines)
    except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError) as error:
        kind = EditedError if isinstance(error, EditedError) else RecordError
        raise kind(
            f"{path.name} must be a complete file of packed records, but cannot be read ({error}). Get the file again"
        ) from error


def _check_sources(sources: Sequence[Any]) -> None:
    """Check that the records have different source files inside the folder of the packed file. Tables find a record by its source
    file.

    Raises:
        ValueError: a source is not text, is empty, leads out of the folder, or occurs twice.
    """
    if any(not isinstance(source, str) or not source for source in sources) or len(set(sources)) < len(sources):
        raise ValueError(
            "the source files of packed records must have different names; got an empty name, or the same name twice. Rename "
            "one of them"
        )
    for path in map(PurePath, sources):
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"the source file of a packed record must be inside the folder of the packed file; got {str(path)!r}")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file as a whole: write it under a temporary name, flush it to the disk, and rename it.

    Raises:
        OSError: the file cannot be written; no part of it remains.
    """
    temporary = path.with_name(f".{path.name}{HALF}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):  # a folder that cannot be written may refuse removal, too
            temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Flush a folder to the disk, so that the new name of a renamed file survives a power failure."""
    with suppress(OSError):  # Windows and some network file systems cannot
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
