"""Tables of a transplant: cost, agreement with the teacher at each stage, and accuracy in text classification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.bench.compare import compare
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.statistics import Estimate, estimate, paired, seed_count
from attn_zoo.terminal import table
from attn_zoo.transplant.experiment import STAGES

WORDS = {"swap": "at the swap", "distilled": "distilled", "tuned": "fine-tuned"}
"""Title of the table column for each stage."""
_EXPLAINED = "Columns: docs/how-to/transplant.md"


@dataclass(frozen=True, slots=True)
class Row:
    """Row of a table: results of one candidate with one initialisation, with one point (result of a trial) per seed."""

    points: Sequence[Mapping[str, Any]]

    def __getitem__(self, name: str) -> Any:
        """Return a field that is equal in all points, such as ``label`` or ``init``."""
        return self.points[0][name]

    @property
    def title(self) -> str:
        """Label of the row. It ends with ``(c)`` if the mechanism is a control, which cannot select tokens by content."""
        return f"{self['label']} (c)" if self["control"] else str(self["label"])

    @property
    def share(self) -> float:
        """FLOPs of the mechanisms as a percentage of those of softmax attention."""
        return float(100 * self["cost"]["attention_flops"] / self["cost"]["softmax_flops"])

    @property
    def encoder_share(self) -> float:
        """FLOPs of the student as a percentage of those of the teacher."""
        return float(100 * self["cost"]["encoder_flops"] / self["cost"]["teacher_flops"])

    def values(self, stage: str, name: str) -> list[float]:
        """Return the quality measure ``name`` at a stage, for each seed for which it was measured."""
        values = [point["stages"][stage][name] for point in self.points if stage in point["stages"]]
        return [value for value in values if value is not None]

    def accuracies(self, tasks: Sequence[str]) -> dict[int, float]:
        """Return the accuracy averaged over ``tasks`` for each seed. Seeds that lack a result on a task are left out."""
        done = {
            point["seed"]: point["accuracy"] for point in self.points if all(task in point.get("accuracy", {}) for task in tasks)
        }
        return {seed: sum(each[task] for task in tasks) / len(tasks) for seed, each in done.items()}


def rows_of(found: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a table, in the order of the points in the record ``found``."""
    return [Row(points) for points in grouped(((point["label"], point["init"]), point) for point in found["points"]).values()]


def transplant_table(found: Mapping[str, Any], format: str = "terminal") -> str:
    """Return the table of all students in the record ``found``, in the format ``terminal`` or ``github``, with notes below."""
    rows, teacher, reference, s = rows_of(found), found["teacher"], found["reference"], found["setting"]
    paired_too = reference["pairs_spearman"] is not None
    head = ["attention", "init", "FLOPs (%)", f"layers saved of {teacher['layers']}", "bytes (%)", "encoder (%)"]
    head += [*WORDS.values(), "layer error", "neighbours", *["pairs", "pairs AUC"] * paired_too]
    first = ["softmax (the teacher)", "", "100.0", "0.0", "100", "100.0", *["1.000"] * len(STAGES), "0 → 0"]
    first.append(f"{reference['neighbours']:.3f}")
    first += ["1.000", f"{reference['pairs_auc']:.3f}"] if paired_too else []
    notes = [
        f"Teacher: {teacher['name']} (weights: {teacher['weights']}), passages of {s['length']} tokens; test: {s['tests']} "
        f"passages of {found['data']['test']}.",
        f"Training: {s['passages']} passages, {s['distil_steps']} steps of distillation, {s['tune_steps']} of fine-tuning, "
        f"{seed_count([len(row.points) for row in rows])}. {_EXPLAINED}#how-to-read-the-table.",
    ]
    notes += [f"{row['label']} failed at seed {p['seed']}: {p['failed']}" for row in rows for p in row.points if p["failed"]]
    return _with_notes(head, [first, *(_line(row, paired_too) for row in rows)], notes, format)


def _line(row: Row, paired_too: bool) -> list[str]:
    cost = row["cost"]
    saved = (1 - row.share / 100) * cost["layers"]
    kept = "-" if cost["kept_bytes"] is None else f"{100 * cost['kept_bytes'] / cost['softmax_kept_bytes']:.0f}"
    last = ["neighbours", *["pairs_spearman", "pairs_auc"] * paired_too]
    return [
        row.title,
        row["init"] or "",
        *(f"{row.share:.1f}", f"{saved:.1f}", kept, f"{row.encoder_share:.1f}"),
        *(_shown(estimate(row.values(stage, "spearman"))) for stage in STAGES),
        f"{_layer_error(row, 'swap')} → {_layer_error(row, 'distilled')}",
        *(_shown(estimate(row.values("tuned", name))) for name in last),
    ]


def _layer_error(row: Row, stage: str) -> str:
    """Return the mean over seeds and layers of ‖Y - Y_teacher‖ / ‖Y_teacher‖ for the outputs Y of attention modules."""
    errors = [point["layer_errors"][stage] for point in row.points if stage in point["layer_errors"]]
    mean = estimate([sum(layers) / len(layers) for layers in errors])
    return "-" if mean is None else f"{mean.mean:.2f}"


def classification_table(found: Mapping[str, Any], format: str = "terminal") -> str:
    """Return a table like ``transplant_table`` with the accuracy of each student on each task and on average, its FLOPs and its
    speed. With several rows, each is compared with that of softmax, or with the first one if softmax is not in the table."""
    tasks, s, environment = found["data"]["tasks"], found["setting"], found["environment"]
    rows = [row for row in rows_of(found) if any("accuracy" in point for point in row.points)]
    compared = len(rows) > 1
    base = min(rows, key=lambda row: row["attention"] != "softmax", default=Row(()))
    head = ["attention", "init", "FLOPs (%)", "encoder (%)", "speed", *["difference"] * compared]
    head += [*(facts["title"] for facts in tasks.values()), "mean"]
    body = []
    for row in rows:
        line = [row.title, row["init"] or "", f"{row.share:.1f}", f"{row.encoder_share:.1f}", _speed(row)]
        if compared:
            difference = None if row is base else paired(row.accuracies(list(tasks)), base.accuracies(list(tasks)))
            line.append("" if difference is None else difference.written(".1f", 100, "+"))
        groups = [*([task] for task in tasks), list(tasks)]
        body.append(line + [_shown(estimate(list(row.accuracies(group).values())), ".1f", 100) for group in groups])
    majority = [f"{100 * facts['majority']:.1f}" for facts in tasks.values()]
    body.append(["most frequent class", *[""] * (4 + compared), *majority, ""])
    learn, test = (_range([facts[part] for facts in tasks.values()]) for part in ("train", "test"))
    notes = [
        f"Training: {s['classify_steps']} steps of {s['classify_batch']}, rate {s['classify_rate']:g}, "
        f"{seed_count([len(row.points) for row in rows])}; {learn} examples per task, {test} for the test.",
        f"Texts of {s['length']} tokens; speed on {environment['cpu']}, {environment['threads']} "
        f"thread{'s' * (environment['threads'] > 1)}. {_EXPLAINED}#classification.",
    ]
    return _with_notes(head, body, notes, format)


def _speed(row: Row) -> str:
    passes = [point["passes"] for point in row.points if "passes" in point]
    student, teacher = ([seconds for each in passes for seconds in each[who]] for who in ("student", "teacher"))
    result = compare(student, teacher)
    return f"{result.quotient:.2f} [{result.low:.2f}, {result.high:.2f}]"


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _with_notes(head: Sequence[str], body: Sequence[Sequence[str]], notes: Sequence[str], format: str) -> str:
    return table(head, body, format, left=(0, 1)) + "\n\n" + "\n".join(f"- {note}" for note in notes)


def _shown(found: Estimate | None, form: str = ".3f", scale: float = 1.0) -> str:
    """Return an estimate as text: the mean ± half the width of its interval. Return a dash if the estimate is None."""
    return "-" if found is None else found.written(form, scale)
