"""Table of a transplant: the cost of attention, and the agreement with the teacher at each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.statistics import Estimate, estimate, seed_count
from attn_zoo.terminal import table
from attn_zoo.transplant.cost import Spent
from attn_zoo.transplant.experiment import STAGES

WORDS = {"swap": "at the swap", "distilled": "distilled", "tuned": "fine-tuned"}
"""Title of the table column for each stage."""
EXPLAINED = "Columns: docs/how-to/transplant.md"
"""Beginning of the sentence that names the section on which the columns of a table are explained."""


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the table: results of one candidate with one initialisation, over all seeds."""

    label: str
    attention: str
    init: str | None
    """Initialisation of the matrices E and F. None if the mechanism has no such matrices."""
    dial: str | None
    """Option in which this row differs from other rows with the same mechanism. None if there are no others."""
    options: Mapping[str, Any]
    control: bool
    cost: Spent
    points: Sequence[Mapping[str, Any]]
    """Results of the trials of this row, one per seed."""

    @property
    def title(self) -> str:
        """Label of the row. It ends with ``(c)`` if the mechanism is a control, which cannot select tokens by content."""
        return f"{self.label} (c)" if self.control else self.label

    def values(self, stage: str, name: str) -> list[float]:
        """Return the quality measure ``name`` at a stage, for each seed for which it was measured."""
        values = [point["stages"][stage][name] for point in self.points if stage in point["stages"]]
        return [value for value in values if value is not None]

    def figure(self, stage: str, name: str) -> Estimate | None:
        """Return the mean of the quality measure ``name`` at a stage over all seeds, with its interval."""
        return estimate(self.values(stage, name))

    def layer_error(self, stage: str) -> Estimate | None:
        """Return the mean layer error over all seeds, with its interval. The layer error is ‖Y - Y_teacher‖ / ‖Y_teacher‖ for the
        outputs Y of attention modules, averaged over layers."""
        errors = [point["layer_errors"][stage] for point in self.points if stage in point["layer_errors"]]
        return estimate([sum(layers) / len(layers) for layers in errors])


def rows_of(points: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the rows of a table, in the order of ``points`` (results of trials). A row contains all points of one candidate
    with one initialisation."""
    groups = grouped(((point["label"], point["init"]), point) for point in points)
    return [
        Row(
            label=label,
            attention=group[0]["attention"],
            init=init,
            dial=group[0]["dial"],
            options=group[0]["options"],
            control=group[0]["control"],
            cost=Spent(**group[0]["cost"]),
            points=group,
        )
        for (label, init), group in groups.items()
    ]


def transplant_table(found: Mapping[str, Any], format: str = "terminal") -> str:
    """Return the table of all students as text, with notes on its columns.

    Args:
        found: record of a transplant.
        format: ``terminal`` or ``github``.
    """
    rows, teacher, reference = rows_of(found["points"]), found["teacher"], found["reference"]
    with_pairs, labelled = reference["pairs_spearman"] is not None, reference["pairs_auc"] is not None
    head = ["attention", "init", "FLOPs (%)", f"layers saved of {teacher['layers']}", "bytes (%)", "encoder (%)"]
    head += [*WORDS.values(), "layer error", "neighbours"] + ["pairs"] * with_pairs + ["pairs AUC"] * labelled
    body = [_teacher_line(reference, with_pairs, labelled), *(_line(row, with_pairs, labelled) for row in rows)]
    return with_notes(head, body, _notes(found, rows), format)


def with_notes(head: Sequence[str], body: Sequence[Sequence[str]], notes: Sequence[str], format: str) -> str:
    """Return a table as text, with a list of notes below. Only the first two columns are aligned on the left."""
    return table(head, body, format, left=(0, 1)) + "\n\n" + "\n".join(f"- {note}" for note in notes)


def shown(found: Estimate | None, form: str = ".3f", scale: float = 1.0) -> str:
    """Return an estimate as text: the mean ± half the width of its interval. Return a dash if the estimate is None."""
    return "-" if found is None else found.written(form, scale)


def _teacher_line(quality: Mapping[str, Any], with_pairs: bool, labelled: bool) -> list[str]:
    line = ["softmax (the teacher)", "", "100.0", "0.0", "100", "100.0", *["1.000"] * len(STAGES), "0 → 0"]
    line.append(f"{quality['neighbours']:.3f}")
    return line + ["1.000"] * with_pairs + ([f"{quality['pairs_auc']:.3f}"] if labelled else [])


def _line(row: Row, with_pairs: bool, labelled: bool) -> list[str]:
    cost = row.cost
    kept = "-" if cost.kept_bytes is None else f"{100 * cost.kept_bytes / cost.softmax_kept_bytes:.0f}"
    costs = [f"{100 * cost.share:.1f}", f"{cost.layers_saved:.1f}", kept, f"{100 * cost.encoder_share:.1f}"]
    stages = [shown(row.figure(stage, "spearman")) for stage in STAGES]
    errors = f"{_plain(row.layer_error('swap'))} → {_plain(row.layer_error('distilled'))}"
    line = [row.title, row.init or "", *costs, *stages, errors, shown(row.figure("tuned", "neighbours"))]
    line += [shown(row.figure("tuned", "pairs_spearman"))] * with_pairs
    return line + [shown(row.figure("tuned", "pairs_auc"))] * labelled


def _plain(found: Estimate | None) -> str:
    return "-" if found is None else f"{found.mean:.2f}"


def _notes(found: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    s, data, teacher = found["setting"], found["data"], found["teacher"]
    notes = [
        f"Teacher: {teacher['name']} (weights: {teacher['weights']}), passages of {s['length']} tokens; test: {s['tests']} "
        f"passages of {data['test']}.",
        f"Training: {s['passages']} passages, {s['distil_steps']} steps of distillation, {s['tune_steps']} of fine-tuning, "
        f"{seed_count([len(row.points) for row in rows])}. {EXPLAINED}#how-to-read-the-table.",
    ]
    notes += [f"{row.label} failed at seed {p['seed']}: {p['failed']}" for row in rows for p in row.points if p["failed"]]
    return notes
