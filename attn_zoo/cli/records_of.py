"""Records by the path that a person types."""

from __future__ import annotations

import json
from pathlib import Path

from attn_zoo.records import Damaged, RecordError, RunRecord, Store


def records_of(path: Path) -> tuple[list[RunRecord], list[Damaged]]:
    """The records of a folder and what is damaged in it, or the one record of a file.

    Raises:
        FileNotFoundError: nothing is there.
        RecordError: the file is no whole record.
    """
    if path.is_dir():
        return Store(path).load()
    if not path.exists():
        raise FileNotFoundError(f"{str(path)!r} does not exist; name a folder of records, or the file of one")
    try:
        return [RunRecord.from_dict(json.loads(path.read_text(encoding="utf-8")), path.name)], []
    except RecordError as error:
        raise RecordError(f"{path}: {error}") from error
    except ValueError as error:
        raise RecordError(f"{path} is not readable as JSON: {error}") from error
