"""JSON of a record's file: parsed, and hashed."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path
from typing import Any

import msgspec

from attn_zoo.records.errors import RecordError

MOST_BYTES = 2**26
"""Maximum size of a file that is read; the record of a long run takes some hundred kilobytes."""


def read_text(path: Path) -> str:
    """Text of a regular file.

    Raises:
        RecordError: the path is a folder, pipe or device, or the file is too large or not UTF-8.
        OSError: the file cannot be read.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise RecordError("not a regular file")
    if found.st_size > MOST_BYTES:
        raise RecordError(f"too large for a record: {found.st_size:,} bytes; at most {MOST_BYTES:,} are allowed")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"not readable as JSON: {error}") from error


def parse(text: str) -> Any:
    """Parse JSON text with finite numbers.

    Raises:
        RecordError: the text is not such JSON.
    """
    try:
        return msgspec.json.decode(text.encode())
    except RecursionError as error:
        raise RecordError("not readable as JSON: it is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RecordError(f"not readable as JSON: {error}") from error


def digest_of(data: Any) -> str:
    """SHA-256 of plain data as JSON with sorted keys and without white space."""
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    if "\\ud" in canonical:  # perhaps half of a surrogate pair, which is written as an escape
        canonical = json.dumps(writable(json.loads(canonical)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def writable(value: Any) -> Any:
    """Replace each half of a surrogate pair, which stands for a byte of a path that is not text, by an escape."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {writable(key): writable(item) for key, item in value.items()}
    return [writable(item) for item in value] if isinstance(value, list) else value
