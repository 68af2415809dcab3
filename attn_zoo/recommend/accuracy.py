"""How an attention scored against softmax in the records, on the task whose length is nearest."""

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
    """A row of a table against the softmax row beside it."""

    task: str
    """Title."""
    length: int
    """Of the task's inputs."""
    label: str
    """Of the row, as the leaderboard has it."""
    options: Mapping[str, Any]
    score: Estimate
    margin: Estimate | None
    """Score minus that of softmax, paired by seed; None for softmax itself."""
    over_control: float | None
    """Score minus that of the best control; None where there was none."""
    files: tuple[str, ...]
    """Records of the row, relative to their folder."""
    warnings: tuple[str, ...]

    def falls(self, accept: float) -> bool:
        """Whether it is below softmax by more than ``accept``, with its whole interval, or as a figure where it has none."""
        return self.margin is not None and self.margin.mean + (self.margin.half_width or 0.0) < -accept


def nearest_accuracy(
    tables: Sequence[Table], attention: str, options: Mapping[str, Any], implementation: str, length: int
) -> Accuracy | None:
    """What is recorded of an attention at the length nearest to ``length``: of these options and this implementation where there
    is a choice, then of the most seeds. None where no table of accuracies has it beside softmax at a common seed.
    """
    found = [accuracy for table in tables for accuracy in _accuracies(table, attention)]

    def distance(item: tuple[Accuracy, Row]) -> tuple[float, bool, bool, int]:
        accuracy, row = item
        other_options = dict(row.options) != dict(options)
        return (
            abs(math.log(accuracy.length / length)),
            other_options,
            row.provenance.implementation != implementation,
            -len(row.scores.seeds),
        )

    return min(found, key=distance)[0] if found else None


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
