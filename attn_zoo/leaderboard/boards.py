"""Boards of rows at equal budgets: scores within the same training time, the same FLOPs, or the same memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.render.text import spent
from attn_zoo.leaderboard.rows import Block, Board, Entry, Row
from attn_zoo.leaderboard.statistics import estimate
from attn_zoo.records import RunRecord

UNITS: Mapping[str, str] = {"time": "s", "FLOPs": "FLOPs", "memory": "bytes"}
_GIVEN = "as requested"
DISTURBED = 2.0
"""Training time over (steps · median step time) above which a run was paused or shared its processor."""
DISTURBANCE = 10.0
"""Least excess in seconds; a slow first step of a short run is no disturbance."""

Point = tuple[float, float]
"""Cost until a validation, and the validation score."""
Spent = Callable[[Row, RunRecord], Sequence[float | None]]
"""Function of a row and one of its records: the cost until each point of the record's curve, None where unknown."""


def boards(
    rows: Sequence[Row], runs: Mapping[str, Sequence[RunRecord]], higher_is_better: bool, equal: Mapping[str, float]
) -> dict[str, Board]:
    """Build a board for each recorded cost, at the budget in ``equal`` or at the default one.

    Args:
        runs: records by label of row.
    """
    made = {
        "time": _trained("time", rows, runs, _seconds, equal.get("time"), higher_is_better),
        "FLOPs": _trained("FLOPs", rows, runs, _flops, equal.get("FLOPs"), higher_is_better),
        "memory": _fitting(rows, equal.get("memory"), higher_is_better),
    }
    return {cost: board for cost, board in made.items() if board}


def boards_at(
    rows: Sequence[Row], runs: Mapping[str, Sequence[RunRecord]], higher_is_better: bool, seconds: Sequence[float]
) -> tuple[Board, ...]:
    """Build a board for each training time, by the rules of ``boards``; none where no record has a curve."""
    made = (_trained("time", rows, runs, _seconds, time, higher_is_better) for time in seconds)
    return tuple(board for board in made if board)


def _seconds(row: Row, record: RunRecord) -> list[float | None]:
    """Seconds of pretraining and training until each curve point; the step in which a run's time limit ends counts as within it."""
    seconds = [point.get("train_seconds") for point in record.curve]
    if len(row.costs.block.machines) != 1 or was_disturbed(record):
        return [None] * len(seconds)
    limit, before = record.spec.budget.seconds or math.inf, pretrain_seconds(record)
    return [None if until is None else min(until, limit) + before for until in seconds]


def was_disturbed(record: RunRecord) -> bool:
    """Tell whether training took over ``DISTURBED`` times (steps · median step time), and over ``DISTURBANCE`` seconds
    more: it was paused or shared its processor, so that its time does not measure the mechanism."""
    seconds, step = record.measured.get("train_seconds"), record.measured.get("step_seconds_median")
    if seconds is None or step is None or not record.curve:
        return False
    expected = record.curve[-1]["step"] * step
    return bool(seconds > DISTURBED * expected and seconds - expected > DISTURBANCE)


def pretrain_seconds(record: RunRecord) -> float:
    """Seconds of pretraining; 0 without."""
    return float(record.measured.get("pretrain_seconds", 0.0))


def _flops(row: Row, record: RunRecord) -> list[float | None]:
    return [flops_until(point["step"], record, row.costs.training_flops_per_example) for point in record.curve]


def flops_until(step: float, record: RunRecord, training_flops_per_example: float | None) -> float | None:
    """FLOPs of training until ``step``, pretraining included; None where they are not counted."""
    budget, before = record.spec.budget, record.counted.get("pretraining_flops_per_example")
    if training_flops_per_example is None or (budget.pretrain_steps and before is None):
        return None
    examples = min(budget.batch_size, record.data.get("train", {}).get("examples", budget.batch_size))
    return examples * (step * training_flops_per_example + budget.pretrain_steps * (before or 0))


def _trained(
    cost: str,
    rows: Sequence[Row],
    runs: Mapping[str, Sequence[RunRecord]],
    spending: Spent,
    asked: float | None,
    higher_is_better: bool,
) -> Board | None:
    """Board of each row's best validation score within the budget; None where no row has a curve with known costs."""
    curves = {row.label: _curves(row, runs[row.label], spending) for row in rows}
    ends = {label: min(max(curve)[0] for curve in found) for label, found in curves.items() if found and all(found)}
    if not ends:
        return None
    budgets: dict[Block, float] = {}
    for members in _compared(rows, cost):
        known = [row for row in members if row.label in ends]
        if known:
            chosen = asked or min(ends[row.label] for row in _contenders(known))
            budgets |= {row.costs.block: chosen for row in members}
    best = max if higher_is_better else min
    entries = [_reached(row, curves[row.label], budgets.get(row.costs.block), cost, best) for row in rows]
    rule = _GIVEN if asked else "the smallest total that any run of a contender spent"
    return Board(cost, budgets, UNITS[cost], rule, "valid", _sorted(entries, higher_is_better))


def _compared(rows: Sequence[Row], cost: str) -> list[list[Row]]:
    """Group rows that share a budget: all rows where the cost is counted, rows of one block where it is measured."""
    return list(grouped((row.block(cost), row) for row in rows).values())


def _contenders(rows: Sequence[Row]) -> Sequence[Row]:
    """Rows that set the budget: the contenders, or the controls where there are no contenders."""
    return [row for row in rows if not row.control] or rows


def _curves(row: Row, members: Sequence[RunRecord], spending: Spent) -> list[list[Point]]:
    """Learning curve of each finished seed, without the points whose cost or score is unknown."""
    found = []
    for record in members:
        if record.spec.seed in row.scores.by_seed:
            pairs = zip(spending(row, record), record.curve, strict=True)
            points = [(cost, point.get("valid")) for cost, point in pairs if cost is not None]
            found.append([(cost, score) for cost, score in points if score is not None])
    return found


def _reached(row: Row, curves: Sequence[Sequence[Point]], budget: float | None, cost: str, best: Callable[..., Point]) -> Entry:
    """Entry of a row: its best validation score within the budget at each seed."""

    def entry(points: Sequence[Point], note: str, over: bool = False) -> Entry:
        amount = statistics.median(spent for spent, _ in points) if points else None
        return Entry(row.label, row.control, row.costs.block, estimate([score for _, score in points]), amount, over, note)

    if budget is None or not curves or not all(curves):
        unknown = "no learning curve, or its training time was disturbed"
        unknown = "measured on several machines" if len(row.costs.block.machines) > 1 else unknown
        return entry([], unknown if row.scores.test else "no seed is done")
    within = [[point for point in curve if point[0] <= budget] for curve in curves]
    if not all(within):
        first = max(min(curve)[0] for curve in curves)
        return entry([], f"over budget: the first validation of the slowest seed came at {spent(cost, first)}", over=True)
    notes = ["spent less than the budget"] if max(max(curve)[0] for curve in curves) < budget else []
    notes += [f"{len(row.scores.failures)} of {row.scores.runs} seeds failed"] if row.scores.failures else []
    return entry([best(points, key=lambda point: point[1]) for points in within], "; ".join(notes))


def _fitting(rows: Sequence[Row], asked: float | None, higher_is_better: bool) -> Board | None:
    """Board of memory: the test score of each attention's row that is best on validation, of those that fit the budget."""
    budgets: dict[Block, float] = {}
    entries: list[Entry] = []
    rules: set[str] = set()
    for members in _compared([row for row in rows if _peak(row) < float("inf") and len(row.costs.block.machines) == 1], "memory"):
        by_attention = grouped((row.attention, row) for row in members)
        softmax = min(map(_peak, by_attention.get("softmax", [])), default=None)
        first = {row.attention for row in _contenders(members)}
        budget = asked or softmax or max(min(map(_peak, by_attention[attention])) for attention in first)
        rules.add(
            _GIVEN
            if asked
            else "the smallest peak memory of any softmax row"
            if softmax
            else "the smallest memory that fits at least one row of every contender"
        )
        budgets[members[0].costs.block] = budget
        entries += [_chosen(rivals, budget, higher_is_better) for rivals in by_attention.values()]
    if not budgets:
        return None
    rule = ", or, in a block without softmax, ".join(sorted(rules, reverse=True))
    return Board("memory", budgets, UNITS["memory"], rule, "test", _sorted(entries, higher_is_better))


def _chosen(members: Sequence[Row], budget: float, higher_is_better: bool) -> Entry:
    """Entry of the best row on validation among the rows of one attention that fit the budget."""
    fitting = [row for row in members if _peak(row) <= budget]
    if not fitting:
        least = min(members, key=_peak)
        return Entry(
            least.label, least.control, least.costs.block, None, None, True, f"over budget: takes {spent('memory', _peak(least))}"
        )
    sign = 1 if higher_is_better else -1
    best = max(fitting, key=lambda row: sign * row.scores.valid.mean if row.scores.valid else float("-inf"))
    note = "" if len(members) == 1 else f"best on validation among the rows that fit ({len(fitting)} of {len(members)})"
    return Entry(best.label, best.control, best.costs.block, best.scores.test, best.costs.peak_bytes, False, note)


def _peak(row: Row) -> float:
    """Peak memory in bytes; infinite where it was not measured."""
    return float("inf") if row.costs.peak_bytes is None else row.costs.peak_bytes


def _sorted(entries: Sequence[Entry], higher_is_better: bool) -> tuple[Entry, ...]:
    sign = -1 if higher_is_better else 1

    def place(entry: Entry) -> tuple[str, bool, float, str]:
        return str(entry.block), entry.control, sign * entry.score.mean if entry.score else float("inf"), entry.label

    return tuple(sorted(entries, key=place))
