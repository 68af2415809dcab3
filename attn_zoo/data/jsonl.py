"""Reader of JSON lines: files with one object per line, compressed or not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attn_zoo.contract import DamagedDataError
from attn_zoo.data.files import open_text


def read_jsonl(path: Path, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects in a file of JSON lines. Each object must have all ``fields``, and may have more.

    Raises:
        DamagedDataError: a line is not an object, or lacks a field.
    """
    with open_text(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DamagedDataError(
                    f"{path}, line {number} must be JSON, but cannot be read ({error.msg}). Fetch the file again, because it is "
                    "damaged"
                ) from error
            lacking = set(fields) - set(row) if isinstance(row, dict) else set(fields)
            if lacking:
                raise DamagedDataError(
                    f"{path}, line {number} must be an object with {', '.join(fields)}; it lacks {', '.join(sorted(lacking))}"
                )
            yield row
