"""Orders in which rows can be shown."""

from __future__ import annotations

from dataclasses import replace

from attn_zoo.checks import check_text
from attn_zoo.leaderboard.pareto import cost_of
from attn_zoo.leaderboard.rows import COSTS, Row, Table

ORDERS = ("score", *(cost.lower() for cost in COSTS))
_COSTS = {cost.lower(): cost for cost in COSTS}


def ordered(table: Table, by: str) -> Table:
    """Sort the rows of a table by ``by``, best score or least cost first, with controls after contenders.

    For a measured cost, rows are sorted within their blocks.

    Raises:
        ValueError: no such order.
    """
    check_text("by", by, ORDERS)
    if by == "score":
        return table

    def place(row: Row) -> tuple[bool, str, bool, float]:
        cost = cost_of(row, _COSTS[by])
        return row.control, str(row.block(_COSTS[by])), cost is None, cost or 0.0

    return replace(table, rows=tuple(sorted(table.rows, key=place)))
