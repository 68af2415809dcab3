"""Recorded accuracy of an attention against softmax, on the task with the nearest length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.leaderboard import Estimate, Row, Table
from attn_zoo.leaderboard.rows import SHARES
from attn_zoo.leaderboard.statistics import paired

BASELINE = "softmax"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Score of a table's row, and its difference from the softmax row."""

    task: str
    """Title of the task."""
    length: int
    """Length of the task's inputs in tokens."""
    label: str
    """Label of the row in the leaderboard."""
    options: Mapping[str, Any]
    score: Estimate
    margin: Estimate | None
    """Score minus that of softmax, paired by seed; None for softmax itself."""
    over_control: float | None
    """Score minus that of the best control; None without a control."""
    files: tuple[str, ...]
    """Paths of the row's records, relative to their folder."""
    warnings: tuple[str, ...]

    def falls(self, accept: float) -> bool:
        """Return whether the score is below softmax's by more than ``accept``, with the whole interval if there is one."""
        return self.margin is not None and self.margin.mean + (self.margin.half_width or 0.0) < -accept


def nearest_accuracy(
    tables: Sequence[Table], attention: str, options: Mapping[str, Any], implementation: str, length: int
) -> Accuracy | None:
    """Recorded accuracy of an attention at the length nearest to ``length``.

    Of several rows, those with these options, then this implementation, then the most seeds are preferred. None if no table of
    accuracies has the attention and softmax with a common seed.
    """
    candidates = [accuracy for table in tables for accuracy in _accuracies(table, attention)]

    def distance(item: tuple[Accuracy, Row]) -> tuple[float, bool, bool, int]:
        accuracy, row = item
        other_options = dict(row.options) != dict(options)
        return (
            abs(math.log(accuracy.length / length)),
            other_options,
            row.provenance.implementation != implementation,
            -len(row.scores.seeds),
        )

    return min(candidates, key=distance)[0] if candidates else None


def _accuracies(table: Table, attention: str) -> Iterator[tuple[Accuracy, Row]]:
    if table.task.get("metric") not in SHARES or not table.task.get("length"):
        return
    softmax = max(
        (row for row in table.rows if row.attention == BASELINE and row.scores.test),
        key=lambda r: len(r.scores.seeds),
        default=None,
    )
    for row in table.rows:
        if row.attention != attention or row.scores.test is None or softmax is None:
            continue
        margin = None if attention == BASELINE else paired(row.scores.by_seed, softmax.scores.by_seed)
        if margin is None and attention != BASELINE:
            continue
        accuracy = Accuracy(
            task=str(table.task["title"]),
            length=int(table.task["length"]),
            label=row.label,
            options=row.options,
            score=row.scores.test,
            margin=margin,
            over_control=None if table.best_control is None else row.scores.test.mean - table.best_control,
            files=row.provenance.files,
            warnings=row.warnings,
        )
        yield accuracy, row
