"""Table of the accuracy of students in text classification, with their cost and speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attn_zoo.bench.compare import compare
from attn_zoo.leaderboard.statistics import estimate, paired, seed_count
from attn_zoo.transplant.table import EXPLAINED, Row, rows_of, shown, with_notes


def classification_table(found: Mapping[str, Any], format: str = "terminal") -> str:
    """Return a table with the accuracy of each student on each task and on average, its FLOPs and its speed.

    Args:
        found: record of a transplant.
        format: ``terminal`` or ``github``.
    """
    tasks = found["data"]["tasks"]
    rows = [row for row in rows_of(found["points"]) if any("accuracy" in point for point in row.points)]
    head = ["attention", "init", "FLOPs (%)", "encoder (%)", "speed", *(facts["title"] for facts in tasks.values()), "mean"]
    body = [_line(row, list(tasks)) for row in rows]
    body.append(["most frequent class", *[""] * 4, *(f"{100 * facts['majority']:.1f}" for facts in tasks.values()), ""])
    if len(rows) > 1:
        base = _base(rows)
        differences = [None if row is base else paired(accuracies(row, list(tasks)), accuracies(base, list(tasks))) for row in rows]
        told = [*("" if found is None else found.written(".1f", 100, "+") for found in differences), ""]
        at = head.index("speed") + 1
        head.insert(at, "difference")
        for line, cell in zip(body, told, strict=True):
            line.insert(at, cell)
    return with_notes(head, body, _notes(found, rows), format)


def accuracies(row: Row, tasks: Sequence[str]) -> dict[int, float]:
    """Return, for each seed, the accuracy of a table row (a candidate with one initialisation), averaged over ``tasks``. Seeds
    that lack a result on a task are left out."""
    done = {point["seed"]: point["accuracy"] for point in row.points if all(task in point.get("accuracy", {}) for task in tasks)}
    return {seed: sum(each[task] for task in tasks) / len(tasks) for seed, each in done.items()}


def _base(rows: Sequence[Row]) -> Row:
    """Return the row with which the others are compared: that of softmax, or the first one if softmax is not in the table."""
    return next((row for row in rows if row.attention == "softmax"), rows[0])


def _line(row: Row, tasks: Sequence[str]) -> list[str]:
    columns = [shown(estimate(list(accuracies(row, each).values())), ".1f", 100) for each in [*([task] for task in tasks), tasks]]
    shares = [f"{100 * row.cost.share:.1f}", f"{100 * row.cost.encoder_share:.1f}"]
    return [row.title, row.init or "", *shares, _speed(row), *columns]


def _speed(row: Row) -> str:
    passes = [point["passes"] for point in row.points if "passes" in point]
    taken = {who: [seconds for each in passes for seconds in each[who]] for who in ("student", "teacher")}
    result = compare(taken["student"], taken["teacher"])
    return f"{result.quotient:.2f} [{result.low:.2f}, {result.high:.2f}]"


def _notes(found: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    s, environment = found["setting"], found["environment"]
    tasks, threads = found["data"]["tasks"].values(), environment["threads"]
    learn, test = (_range([facts[part] for facts in tasks]) for part in ("train", "test"))
    return [
        f"Training: {s['classify_steps']} steps of {s['classify_batch']}, rate {s['classify_rate']:g}, "
        f"{seed_count([len(row.points) for row in rows])}; {learn} examples per task, {test} for the test.",
        f"Texts of {s['length']} tokens; speed on {environment['cpu']}, {threads} thread{'s' * (threads > 1)}. "
        f"{EXPLAINED}#classification.",
    ]


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
