"""JSON of a record's file: parsed with bounds on size and depth, checked for edits by its formatting, and hashed."""

from __future__ import annotations

import hashlib
import json
import math
import re
import stat
from pathlib import Path
from typing import Any, NoReturn

from attn_zoo.records.errors import RecordError

MOST_BYTES = 2**26
"""Maximum size of a file that is read; the record of a long run takes some hundred kilobytes."""
MOST_LEVELS = 16
"""Maximum nesting depth of the data; a record has 5 levels."""

_SPACE_OUTSIDE_STRINGS = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')


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
    """Parse JSON text of bounded depth with finite numbers.

    Raises:
        RecordError: the text is not such JSON.
    """
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except RecordError:
        raise
    except RecursionError as error:
        raise RecordError(f"nested deeper than {MOST_LEVELS} levels") from error
    except ValueError as error:
        raise RecordError(f"not readable as JSON: {error}") from error
    _check([data], MOST_LEVELS + 1)
    try:
        if "\\u" in text:
            json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise RecordError("it holds half of a surrogate pair, which is not valid text") from error
    return data


def is_respelled(text: str, data: Any) -> bool:
    """Return whether a text has the content of ``data`` in a spelling that Python's ``json`` does not write.

    White space does not matter. Such a text was edited: for instance, a number has another last digit that rounds to the same
    value, or a key occurs twice.
    """
    if "".join(line.strip() for line in text.split("\n")) == json.dumps(data, separators=(",", ": ")):
        return False  # fast path for the zoo's own indentation; JSON strings contain no line breaks
    return _SPACE_OUTSIDE_STRINGS.sub(r"\1", text) != json.dumps(data, separators=(",", ":"))


def matches_digest(text: str, digest: Any) -> bool:
    """Return whether a text in the layout of ``Store.add`` has this digest: then neither its content nor its spelling was edited.

    False means unknown: the text may have another layout, or a string with a quotation mark, in which a space after ``":`` would
    count as layout. This check is faster than ``digest_of``, which writes the data again.
    """
    if '\\"' in text:
        return False
    canonical = "".join(map(str.strip, text.split("\n"))).replace('": ', '":').replace(f'"digest":"{digest}",', "", 1)
    return hashlib.sha256(canonical.encode(errors="replace")).hexdigest() == digest


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


def _refuse_constant(name: str) -> NoReturn:
    raise RecordError(f"not readable as JSON: {name} is not a JSON number")


def _check(values: dict[str, Any] | list[Any], levels: int) -> None:
    """Check that all numbers are finite and that no value lies deeper than ``levels``."""
    if not levels:
        raise RecordError(f"nested deeper than {MOST_LEVELS} levels")
    for value in values.values() if isinstance(values, dict) else values:
        kind = type(value)  # faster than isinstance; JSON has no subclasses
        if kind is float:
            if not math.isfinite(value):
                raise RecordError("a number is too large for a float")
        elif kind is dict or kind is list:
            _check(value, levels - 1)
