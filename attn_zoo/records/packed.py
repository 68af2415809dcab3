"""Packed files: many records in one compressed file, one per line, which is read as a folder of their files is."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

from attn_zoo.records.errors import EditedError, RecordError
from attn_zoo.records.files import write_whole
from attn_zoo.records.judge import whole_record
from attn_zoo.records.plain import MOST_BYTES, parse, writable
from attn_zoo.records.record import RunRecord

SUFFIX = ".jsonl.xz"
"""Suffix of every packed file's name."""
NAME = f"records{SUFFIX}"
"""Name of the packed file of a folder."""


def is_packed(path: Path) -> bool:
    """Return whether ``path`` is a packed file."""
    return path.name.endswith(SUFFIX) and path.is_file()


def pack(records: Iterable[RunRecord], path: Path) -> None:
    """Write ``records`` to ``path`` with all their fields, each with the name of its source file.

    Raises:
        ValueError: the name of ``path`` does not end in ``SUFFIX``, or a record has no source file of its own.
        RecordError: no reader would accept the file.
        OSError: the file cannot be written.
    """
    if not path.name.endswith(SUFFIX):
        raise ValueError(f"the name of a packed file must end in {SUFFIX}; got {path.name!r}")
    lines = [{"source": writable(record.source), "record": record.to_dict()} for record in records]
    _check_sources([line["source"] for line in lines])
    text = "".join(json.dumps(line, sort_keys=True, allow_nan=False, separators=(",", ":")) + "\n" for line in lines)
    if len(text) > MOST_BYTES:
        raise RecordError(f"the records of {path.name} have {len(text):,} bytes; a packed file must have at most {MOST_BYTES:,}")
    write_whole(path, lzma.compress(text.encode(), preset=lzma.PRESET_EXTREME | 9))


def unpack(path: Path) -> list[RunRecord]:
    """Records of a packed file.

    Raises:
        OSError: the file cannot be read.
        RecordError: the file is damaged.
    """
    found = path.stat()
    return list(_unpacked(path, found.st_mtime_ns, found.st_size))


@lru_cache(maxsize=4)  # a sweep asks for each of its runs
def _unpacked(path: Path, changed: int, size: int) -> Sequence[RunRecord]:
    try:
        with lzma.open(path) as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise RecordError(f"more than {MOST_BYTES:,} bytes")
        lines = [parse(line) for line in text.decode().splitlines()]
        _check_sources([line["source"] for line in lines])
        return tuple(whole_record(line["record"], line["source"]) for line in lines)
    except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError) as error:
        kind = EditedError if isinstance(error, EditedError) else RecordError
        raise kind(f"{path.name} is not a complete file of packed records ({error}); get it again") from error


def _check_sources(sources: Sequence[Any]) -> None:
    """Check that every record has a source file of its own, by which tables find it, inside the folder of the packed file.

    Raises:
        ValueError: a source is not text, is empty, leads out of the folder, or occurs twice.
    """
    if any(not isinstance(source, str) or not source for source in sources) or len(set(sources)) < len(sources):
        raise ValueError("each packed record must have the name of a source file of its own")
    for path in map(PurePath, sources):
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"the source file of a packed record must be inside the folder of the packed file; got {str(path)!r}")
