"""Row that represents a mechanism, and shade of its score: none at the task's best control, deepest at the best mechanism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.compare import resolution
from attn_zoo.leaderboard.table import Row, Table


def shown_rows(table: Table) -> dict[str, Row]:
    """Row with the best validation score of each attention; a failed row only where there is no other."""

    def place(row: Row) -> tuple[bool, bool, float]:
        valid = row.valid
        return row.test is not None, valid is not None, table.sign * valid.mean if valid else 0.0

    by_attention = grouped((row.attention, row) for row in sorted(table.rows, key=lambda row: row.label))
    return {attention: max(rows, key=place) for attention, rows in by_attention.items()}


def shades(table: Table, rows: Sequence[Row]) -> Mapping[str, float]:
    """Shade by label of the ``rows`` that have a score: 0 at the table's best control and below, 1 at the best mechanism among
    ``rows``, linear between them. Empty where ``unshaded`` gives a reason.

    Shades do not begin at chance, because a control above chance has found that much without attention.
    """
    if unshaded(table, rows) is not None:
        return {}
    sign, start = table.sign, table.best_control
    best = _best(table, rows)
    assert start is not None and best is not None and best.test is not None, (
        "a shaded table has a control and a mechanism with scores"
    )
    span = sign * (best.test.mean - start)
    return {row.label: max(0.0, min(1.0, sign * (row.test.mean - start) / span)) for row in rows if row.test}


def unshaded(table: Table, rows: Sequence[Row]) -> str | None:
    """Reason why the scores of a table cannot be shaded; None where they can.

    A task on which no mechanism beats the best control, or beats it by less than noise or a point, does not measure attention.
    With one seed noise is unknown, and a lead of a point suffices.
    """
    best, sign = _best(table, rows), table.sign
    if best is None or best.test is None:
        return "no mechanism has a score"
    if table.best_control is None:
        return "no control was run"
    if sign * (best.test.mean - table.best_control) <= 0:
        return f"no mechanism is better than the control {table.control}"
    leaders = [row for row in rows if row is best or row.rank == 1]
    margins = [row.margin for row in leaders if row.margin]
    if margins and all(m.half_width is not None and sign * m.mean <= m.half_width for m in margins):
        return f"no mechanism is better than the control {table.control} beyond noise"
    measured = resolution(table.task, table.data)
    if measured.ties(best.test.mean - table.best_control, abs(table.best_control)):
        return f"no mechanism is better than the control {table.control} by {'a point' if measured.share else '1 %'}"
    return None


def _best(table: Table, rows: Sequence[Row]) -> Row | None:
    scored = [(table.sign * row.test.mean, row) for row in rows if row.test and not row.control]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None
