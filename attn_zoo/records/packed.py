"""Packed files: many records in one compressed file, one per line, written once and never extended."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable
from pathlib import Path

from attn_zoo.records.errors import RecordError
from attn_zoo.records.judge import whole_record
from attn_zoo.records.plain import MOST_BYTES, parse
from attn_zoo.records.record import RunRecord

SUFFIX = ".jsonl.xz"
"""Suffix of every packed file's name."""


def is_packed(path: Path) -> bool:
    """Return whether ``path`` is a packed file."""
    return path.name.endswith(SUFFIX) and path.is_file()


def pack(records: Iterable[RunRecord], path: Path) -> None:
    """Write ``records`` to ``path`` with all their fields, each with the name of its source file.

    Raises:
        ValueError: the name of ``path`` does not end in ``SUFFIX``.
        OSError: the file cannot be written.
    """
    if not path.name.endswith(SUFFIX):
        raise ValueError(f"the name of a packed file must end in {SUFFIX}; got {path.name!r}")
    lines = [{"source": record.source, "record": record.to_dict()} for record in records]
    text = "".join(json.dumps(line, sort_keys=True, allow_nan=False, separators=(",", ":")) + "\n" for line in lines)
    path.write_bytes(lzma.compress(text.encode(), preset=lzma.PRESET_EXTREME | 9))


def unpack(path: Path) -> list[RunRecord]:
    """Records of a packed file.

    Raises:
        OSError: the file cannot be read.
        RecordError: the file is damaged.
    """
    try:
        with lzma.open(path) as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise RecordError(f"more than {MOST_BYTES:,} bytes")
        lines = [parse(line) for line in text.decode().splitlines()]
        return [whole_record(line["record"], line["source"]) for line in lines]
    except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path.name} is not a complete file of packed records ({error}); get it again") from error
