"""Scores against costs: Pareto fronts, and rows that are dominated by others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attn_zoo.leaderboard.rows import COSTS, COUNTED, Ranking, Row


def with_fronts(rows: Sequence[Row], ranking: Ranking, higher_is_better: bool) -> list[Row]:
    """Add to each row, controls included, the Pareto fronts it is on and the rows that dominate it.

    Fronts compare means. Dominance is stricter, so that noise does not cause it: no worse in the mean score and in every
    comparable cost, and either lower in a cost or better in score beyond noise. A row with a failed seed is on no front
    and dominates none.
    """
    apart = {(c.better, c.worse) for c in ranking.comparisons if c.apart}
    whole = [row for row in rows if row.scores.test and not row.scores.failures]
    labels = {row.label for row in whole}
    sign = 1 if higher_is_better else -1
    return [
        replace(
            row,
            standing=replace(
                row.standing,
                fronts=tuple(cost for cost in COSTS if row.label in labels and _on_front(row, whole, cost, sign)),
                dominated_by=tuple(other.label for other in whole if row.scores.test and _dominates(other, row, sign, apart)),
            ),
        )
        for row in rows
    ]


def comparable(one: Row, other: Row, cost: str) -> bool:
    """Tell whether a cost of two rows may be compared: counted ones everywhere, measured ones within a block on one machine."""
    if cost_of(one, cost) is None or cost_of(other, cost) is None:
        return False
    return one.block(cost) == other.block(cost) and (cost in COUNTED or len(one.costs.block.machines) == 1)


def cost_of(row: Row, cost: str) -> float | None:
    """Value of a cost, one of ``COSTS``; None where it was not measured."""
    value: float | None = getattr(row.costs, COSTS[cost])
    return value


def _on_front(row: Row, others: Sequence[Row], cost: str, sign: int) -> bool:
    mine = cost_of(row, cost)
    if mine is None or not comparable(row, row, cost):  # not measured, or on several machines
        return False
    score = _signed(row, sign)
    rivals = [(_signed(o, sign), cost_of(o, cost) or 0.0) for o in others if comparable(row, o, cost)]
    return not any(theirs >= score and spent <= mine and (theirs, spent) != (score, mine) for theirs, spent in rivals)


def _dominates(one: Row, other: Row, sign: int, apart: set[tuple[str, str]]) -> bool:
    if one is other or _signed(one, sign) < _signed(other, sign):
        return False
    costs = {cost: (cost_of(one, cost) or 0.0, cost_of(other, cost) or 0.0) for cost in COSTS if comparable(one, other, cost)}
    if not costs or any(mine > theirs for mine, theirs in costs.values()):
        return False
    less = any(mine < theirs for cost, (mine, theirs) in costs.items() if cost != "time")
    return less or ("time" in costs and _sooner(one, other)) or (one.label, other.label) in apart


def _sooner(one: Row, other: Row) -> bool:
    """Tell whether the slowest seed of one took less time than the fastest of the other."""
    if one.costs.train_seconds_range is None or other.costs.train_seconds_range is None:
        return False
    return one.costs.train_seconds_range[1] < other.costs.train_seconds_range[0]


def _signed(row: Row, sign: int) -> float:
    assert row.scores.test is not None, "only rows with a score are compared"
    return sign * row.scores.test.mean
