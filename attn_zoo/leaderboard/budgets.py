"""Scores at equal budgets: with the same training time, the same FLOPs, or the same memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.metrics import spent
from attn_zoo.leaderboard.statistics import estimate
from attn_zoo.leaderboard.table import Block, Board, Row, Within
from attn_zoo.records import RunRecord

DISTURBED = 2.0
"""A run counts as disturbed (it was paused or shared its processor) if its training took more than this many times as long as
expected."""
DISTURBANCE = 10.0  # so that a slow first step of a short run does not count
"""A run counts as disturbed only if its training also took more than this many seconds longer than expected (see
``DISTURBED``)."""
_GIVEN = "as requested"

Point = tuple[float, float]
"""Cost spent until a validation, and the score of this validation."""


def boards(rows: Sequence[Row], equal: Mapping[str, float]) -> dict[str, Board]:
    """Return for each recorded cost (time, FLOPs, memory) the scores that the rows reach within the same budget.

    Args:
        equal: budget by cost, in seconds, FLOPs or bytes. Each cost without a budget gets its default budget.
    """
    made = {
        "time": _trained("time", rows, equal.get("time")),
        "FLOPs": _trained("FLOPs", rows, equal.get("FLOPs")),
        "memory": _fitting(rows, equal.get("memory")),
    }
    return {cost: board for cost, board in made.items() if board}


def boards_at(rows: Sequence[Row], seconds: Sequence[float]) -> tuple[Board, ...]:
    """Return, for each training time in seconds, the best validation score that each row reached by then. If no run has a
    validation curve, the result is empty."""
    made = (_trained("time", rows, time) for time in seconds)
    return tuple(board for board in made if board)


def seconds_until(run: RunRecord, seconds: float | None) -> float | None:
    """Return the sum of ``seconds`` (a training time) and the run's seconds of pretraining. Return None for a disturbed run, or if
    ``seconds`` is None.

    If ``seconds`` exceeds the run's time limit, the limit is used instead. A run was disturbed if its training took more than
    ``DISTURBED`` times the expected time, and more than ``DISTURBANCE`` seconds longer. The expected time is the number of steps
    times the median time of a step.
    """
    if seconds is None or _was_disturbed(run):
        return None
    return float(min(seconds, run.spec.budget.seconds or math.inf) + run.measured.get("pretrain_seconds", 0.0))


def _was_disturbed(run: RunRecord) -> bool:
    seconds, step = run.measured.get("train_seconds"), run.measured.get("step_seconds_median")
    if seconds is None or step is None or not run.curve:
        return False
    expected = run.curve[-1]["step"] * step
    return bool(seconds > DISTURBED * expected and seconds - expected > DISTURBANCE)


def flops_until(step: float, run: RunRecord, training_flops_per_example: float | None) -> float | None:
    """Return the FLOPs that a run spent on training up to ``step``, pretraining included, or None if the FLOPs were not counted."""
    batch, before = run.spec.budget.batch_size, run.counted.get("pretraining_flops_per_example")
    pretraining = run.spec.budget.pretrain_steps
    if training_flops_per_example is None or (pretraining and before is None):
        return None
    examples = min(batch, run.data.get("train", {}).get("examples", batch))
    return float(examples * (step * training_flops_per_example + pretraining * (before or 0)))


def _spent_until(point: Mapping[str, Any], cost: str, row: Row, run: RunRecord) -> float | None:
    """Return the time or FLOPs that a run of the row spent until a point of its curve, or None if it is unknown or cannot be
    compared."""
    if cost == "FLOPs":
        return flops_until(point["step"], run, row.training_flops_per_example)
    comparable = len(row.block.machines) == 1 and not row.unsteady
    return seconds_until(run, point.get("train_seconds")) if comparable else None


def _trained(cost: str, rows: Sequence[Row], asked: float | None) -> Board | None:
    """Return the board with each row's best validation score within the budget, or None if no row has a curve with known costs."""
    curves = {row.label: _curves(row, cost) for row in rows}
    ends = {label: min(max(curve)[0] for curve in found) for label, found in curves.items() if found and all(found)}
    if not ends:
        return None
    budgets: dict[Block, float] = {}
    for members in grouped((row.block_of(cost), row) for row in rows).values():
        known = [row for row in members if row.label in ends]
        if known:
            chosen = asked or min(ends[row.label] for row in _contenders(known))
            budgets |= {row.block: chosen for row in members}
    within = {row.label: _reached(row, curves[row.label], budgets.get(row.block), cost) for row in rows}
    return Board(cost, _GIVEN if asked else "the smallest total that any run of a contender spent", "valid", budgets, within)


def _contenders(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows that set the budget: the contenders or, if there are none, the controls."""
    return [row for row in rows if not row.control] or rows


def _curves(row: Row, cost: str) -> list[list[Point]]:
    """Return the learning curve of each finished seed. Points whose cost or score is not known are left out."""
    found = []
    for run in row.runs:
        if run.spec.seed in row.by_seed:
            points = [(_spent_until(point, cost, row, run), point["valid"]) for point in run.validations]
            found.append([(spent, score) for spent, score in points if spent is not None])
    return found


def _reached(row: Row, curves: Sequence[Sequence[Point]], budget: float | None, cost: str) -> Within:
    """Return the best validation score that a row reached within the budget, as an estimate over seeds."""

    def entry(points: Sequence[Point], note: str, over: bool = False) -> Within:
        amount = statistics.median(cost for cost, _ in points) if points else None
        return Within(budget, estimate([score for _, score in points], row.resolution.scores), amount, over, note)

    if budget is None or not curves or not all(curves):
        unknown = "no learning curve, or its training time was disturbed"
        unknown = "measured on several machines" if len(row.block.machines) > 1 else row.unsteady or unknown
        return entry([], unknown if row.test else "no seed is done")
    within = [[point for point in curve if point[0] <= budget] for curve in curves]
    if not all(within):
        first = max(min(curve)[0] for curve in curves)
        return entry([], f"over budget: the first validation of the slowest seed came at {spent(cost, first)}", over=True)
    notes = ["spent less than the budget"] if max(max(curve)[0] for curve in curves) < budget else []
    notes += [f"{len(row.failures)} of {row.attempts} seeds failed"] if row.failures else []
    return entry([max(points, key=lambda point: row.resolution.sign * point[1]) for points in within], "; ".join(notes))


def _fitting(rows: Sequence[Row], asked: float | None) -> Board | None:
    """Return the board of memory. It has, for each mechanism, the row with the best validation score among those that fit the
    budget, with its test score."""
    budgets: dict[Block, float] = {}
    within: dict[str, Within] = {}
    rules: set[str] = set()
    measured = [row for row in rows if _peak(row) < math.inf and len(row.block.machines) == 1]
    for block, members in grouped((row.block, row) for row in measured).items():
        by_attention = grouped((row.attention, row) for row in members)
        softmax = min(map(_peak, by_attention.get("softmax", [])), default=None)
        first = {row.attention for row in _contenders(members)}
        budgets[block] = asked or softmax or max(min(map(_peak, by_attention[attention])) for attention in first)
        smallest = "peak memory of any softmax row" if softmax else "memory that fits at least one row of every contender"
        rules.add(_GIVEN if asked else f"the smallest {smallest}")
        within |= dict(_chosen(rivals, budgets[block]) for rivals in by_attention.values())
    if not budgets:
        return None
    return Board("memory", ", or, in a block without softmax, ".join(sorted(rules, reverse=True)), "test", budgets, within)


def _chosen(members: Sequence[Row], budget: float) -> tuple[str, Within]:
    """Return the label and the test score of a mechanism's best row on validation among the rows that fit the budget."""
    fitting = [row for row in members if _peak(row) <= budget]
    if not fitting:
        least = min(members, key=_peak)
        return least.label, Within(budget, None, None, True, f"over budget: takes {spent('memory', _peak(least))}")
    best = max(fitting, key=lambda row: row.resolution.sign * row.valid.mean if row.valid else -math.inf)
    note = "" if len(members) == 1 else f"best on validation among the rows that fit ({len(fitting)} of {len(members)})"
    return best.label, Within(budget, best.test, best.peak_bytes, False, note)


def _peak(row: Row) -> float:
    """Return the peak memory in bytes, or infinity if it was not measured."""
    return math.inf if row.peak_bytes is None else row.peak_bytes
