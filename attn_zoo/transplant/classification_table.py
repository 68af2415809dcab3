"""Table of students' accuracy in classification, with their cost and the speed of a forward pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from attn_zoo.cost.compare import METHOD, compare
from attn_zoo.leaderboard.statistics import CONFIDENCE, Estimate, estimate
from attn_zoo.transplant.setting import CLASSIFY, Setting
from attn_zoo.transplant.table import Row, rows_of, with_notes


def classification_table(found: Mapping[str, Any], style: str = "simple") -> str:
    """Accuracy of each student on each task, the mean over tasks, FLOPs and speed; rows as in ``transplant_table``."""
    tasks = found["data"]["tasks"]
    rows = [row for row in rows_of(found["points"]) if any("accuracy" in point for point in row.points)]
    head = ["attention", "init", "FLOPs (%)", "encoder (%)", "speed", *(facts["title"] for facts in tasks.values()), "mean"]
    body = [_line(row, list(tasks)) for row in rows]
    body.append(["most frequent class", *[""] * 4, *(f"{100 * facts['majority']:.1f}" for facts in tasks.values()), ""])
    align = ["left", "left", *["right"] * (len(head) - 2)]
    return with_notes(tabulate(body, head, tablefmt=style, disable_numparse=True, colalign=align), _notes(found, rows))


def accuracies(row: Row, tasks: Sequence[str]) -> list[float]:
    """Mean accuracy over the given tasks, for each seed that has results on all of them."""
    done = [point["accuracy"] for point in row.points if all(task in point.get("accuracy", {}) for task in tasks)]
    return [sum(each[task] for task in tasks) / len(tasks) for each in done]


def _line(row: Row, tasks: Sequence[str]) -> list[str]:
    columns = [_percent(estimate(accuracies(row, [task]))) for task in tasks] + [_percent(estimate(accuracies(row, tasks)))]
    shares = [f"{100 * row.cost.share:.1f}", f"{100 * row.cost.encoder_share:.1f}"]
    return [f"{row.label} (c)" if row.control else row.label, row.init or "", *shares, _speed(row), *columns]


def _percent(found: Estimate | None) -> str:
    if found is None:
        return "-"
    return f"{100 * found.mean:.1f}" + ("" if found.half_width is None else f" ± {100 * found.half_width:.1f}")


def _speed(row: Row) -> str:
    passes = [point["passes"] for point in row.points if "passes" in point]
    taken = {who: [seconds for each in passes for seconds in each[who]] for who in ("student", "teacher")}
    result = compare(taken["student"], taken["teacher"])
    return f"{result.quotient:.2f} [{result.low:.2f}, {result.high:.2f}]"


def _notes(found: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    setting, environment = found["setting"], found["environment"]
    defaults = {name: Setting.__dataclass_fields__[name].default for name in CLASSIFY}
    s = {**defaults, **setting}
    sizes = ", ".join(f"{facts['title']} {facts['train']:,} and {facts['test']:,}" for facts in found["data"]["tasks"].values())
    notes = [
        f"Accuracy (%) after {s['classify_steps']} steps of {s['classify_batch']} rows on each task, of the whole student and a "
        f"linear layer on its mean hidden state, at a peak rate of {s['classify_rate']:g}.",
        f"Rows to learn from and to test on: {sizes}.",
        f"Speed: seconds of the teacher's forward pass in those of the student's, above 1 where the student is faster; "
        f"{setting['length']} tokens, rounds in turn, threads: {environment['threads']}, {environment['cpu']}; {METHOD}.",
    ]
    if any(row.attention == "softmax" for row in rows):
        notes.append("softmax is the teacher itself, fine-tuned on each task with the same steps, rates and seeds.")
    seeds = max((len(row.points) for row in rows), default=0)
    if seeds > 1:
        notes.append(f"± is half of the {100 * CONFIDENCE:.0f} % t interval of the mean over up to {seeds} seeds.")
    return notes
