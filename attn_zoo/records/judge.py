"""Validation of one record: readable file, complete fields of the right types, matching digest, and no contradictions.

Every reader of records calls this module, so that all commands show exactly the records that ``attn-zoo records verify`` accepts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attn_zoo.records.errors import EditedError
from attn_zoo.records.plain import parse, read_text
from attn_zoo.records.record import RunRecord


def read_record(path: Path, source: str | None = None) -> RunRecord:
    """Read and validate the record in a file.

    Args:
        source: file name to store in the record; by default the name of ``path``.

    Raises:
        RecordError: the file is not a complete record, or was changed after it was written.
        OSError: the file cannot be read.
    """
    return judged(read_text(path), path.name if source is None else source)


def judged(text: str, source: str | None) -> RunRecord:
    """Validate the text of a record's file, and return the record.

    Raises:
        RecordError: the text is not a complete record, or was changed after it was written.
    """
    return whole_record(parse(text), source)


def whole_record(data: Any, source: str | None) -> RunRecord:
    """Build a record from plain data, and check it for contradictions.

    Raises:
        RecordError: the data are not a complete record, or were changed after they were written.
    """
    record = RunRecord.from_dict(data, source)
    contradiction = next(_contradictions(record), None)
    if contradiction is not None:
        raise EditedError(contradiction)
    return record


def _contradictions(record: RunRecord) -> Iterator[str]:
    """Contradictions between fields of a record, as text."""
    expected = record.spec.run_id(str(record.task_card.get("version")), record.protocol)
    if record.run_id != expected:
        yield f"run_id {record.run_id} does not follow from its spec, which gives {expected}: changed after it was written"
    for what, actual, expected in (
        ("task", record.task_card.get("name"), record.spec.task),
        ("attention", record.attention_card.get("name"), record.spec.attention),
    ):
        if actual != expected:
            yield f"its card names {what} {actual!r}, its spec {expected!r}"
    tested = _tested_on_curve(record)
    if tested is not None and tested != record.scores.get("valid"):
        yield f"its validation score is {record.scores.get('valid')}, but {tested} on its curve"


def _tested_on_curve(record: RunRecord) -> float | None:
    """Validation score, on the curve of a run that is done, of the weights that are tested; None for others."""
    scores = [point["valid"] for point in record.curve if point.get("valid") is not None]
    if record.status != "done" or not scores:
        return None
    if record.spec.budget.until == "criterion":
        return scores[-1]
    return max(scores) if record.task_card.get("higher_is_better", True) else min(scores)
