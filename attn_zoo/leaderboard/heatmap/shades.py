"""Depth of shade of a score: nothing at the best control of its task, deepest at the best mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attn_zoo.leaderboard.comparisons import resolution
from attn_zoo.leaderboard.rows import Row, Table


def shades(table: Table, rows: Sequence[Row]) -> Mapping[str, float]:
    """Depth by label of the ``rows`` that have a score: 0 at the table's best control and at all that is worse, 1 at the best
    mechanism among ``rows``, linear between them. Empty where ``unshaded`` says why nothing is to be shaded.

    Chance is no lower end: a control above it has found that much without attention.
    """
    if unshaded(table, rows) is not None:
        return {}
    sign, start = _sign(table), table.best_control
    best = _best(table, rows)
    assert start is not None and best is not None and best.scores.test is not None, "otherwise it is unshaded"
    span = sign * (best.scores.test.mean - start)
    return {row.label: max(0.0, min(1.0, sign * (row.scores.test.mean - start) / span)) for row in rows if row.scores.test}


def unshaded(table: Table, rows: Sequence[Row]) -> str | None:
    """Why no score of a table can be shaded; None where some can.

    A task on which no mechanism is beyond the best control, or beyond it by less than noise or than a point, measures no attention.
    One seed cannot tell noise, and is believed from a point on.
    """
    best, sign = _best(table, rows), _sign(table)
    if best is None or best.scores.test is None:
        return "no mechanism has a score"
    if table.best_control is None:
        return "no control was run"
    if sign * (best.scores.test.mean - table.best_control) <= 0:
        return f"no mechanism is better than the control {table.control}"
    leaders = [row for row in rows if row is best or row.standing.rank == 1]
    margins = [row.scores.margin for row in leaders if row.scores.margin]
    if margins and all(m.half_width is not None and sign * m.mean <= m.half_width for m in margins):
        return f"no mechanism is better than the control {table.control} beyond noise"
    measured = resolution(table.task, table.data)
    if measured.ties(best.scores.test.mean - table.best_control, abs(table.best_control)):
        return f"no mechanism is better than the control {table.control} by {'a point' if measured.share else '1 %'}"
    return None


def _best(table: Table, rows: Sequence[Row]) -> Row | None:
    scored = [(_sign(table) * row.scores.test.mean, row) for row in rows if row.scores.test and not row.control]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


def _sign(table: Table) -> int:
    return 1 if table.higher_is_better else -1
