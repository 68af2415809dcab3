"""Judgement of one record: read from its file, whole, of the right types, with its digest, and free of contradictions.

Every reader of records asks this module, so that a command shows what ``attn-zoo records verify`` accepts, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attn_zoo.records.errors import EditedError
from attn_zoo.records.plain import is_respelled, parse, read_text
from attn_zoo.records.record import RunRecord


def read_record(path: Path, source: str | None = None) -> RunRecord:
    """Record in a file.

    Args:
        source: name of the file in the record; by default that of ``path``.

    Raises:
        RecordError: the file is no whole record, or was changed after it was written.
        OSError: the file cannot be read.
    """
    return judged(read_text(path), path.name if source is None else source)


def judged(text: str, source: str | None) -> RunRecord:
    """Record in a text of JSON.

    Raises:
        RecordError: the text is no whole record, or was changed after it was written.
    """
    data = parse(text)
    record = whole_record(data, source)
    if data["schema"] >= 5 and is_respelled(text, data):
        raise EditedError("its content is spelled otherwise than a record's: changed after it was written")
    return record


def whole_record(data: Any, source: str | None) -> RunRecord:
    """Record from plain data, free of contradictions.

    Raises:
        RecordError: the data are no whole record, or were changed after they were written.
    """
    record = RunRecord.from_dict(data, source)
    contradiction = next(contradictions(record), None)
    if contradiction is not None:
        raise EditedError(contradiction)
    return record


def contradictions(record: RunRecord) -> Iterator[str]:
    """Contradictions of a record with itself, in words."""
    expected = record.spec.run_id(str(record.task_card.get("version")), record.protocol)
    if record.run_id != expected:
        yield f"run_id {record.run_id} does not follow from its spec, which gives {expected}: changed after it was written"
    for what, actual, expected in (
        ("task", record.task_card.get("name"), record.spec.task),
        ("attention", record.attention_card.get("name"), record.spec.attention),
    ):
        if actual != expected:
            yield f"its card is of {what} {actual!r}, its spec of {expected!r}"
    best = _best_on_curve(record)
    if best is not None and best != record.scores.get("valid"):
        yield f"its best validation score is {record.scores.get('valid')}, but its curve's is {best}"


def _best_on_curve(record: RunRecord) -> float | None:
    """Best validation score on the curve of a run that is done; None for others."""
    scores = [point["valid"] for point in record.curve if point.get("valid") is not None]
    if record.status != "done" or not scores:
        return None
    return max(scores) if record.task_card.get("higher_is_better", True) else min(scores)
