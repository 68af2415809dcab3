"""Choice of the row that represents a mechanism."""

from __future__ import annotations

from attn_zoo.leaderboard.rows import Row, Table


def shown_rows(table: Table) -> dict[str, Row]:
    """Row with the best validation score of each attention; a failed row only where there is no other."""
    sign = 1 if table.higher_is_better else -1

    def place(row: Row) -> tuple[bool, bool, float]:
        return row.scores.test is not None, row.scores.valid is not None, sign * row.scores.valid.mean if row.scores.valid else 0.0

    by_attention: dict[str, Row] = {}
    for row in sorted(table.rows, key=lambda row: row.label):
        known = by_attention.get(row.attention)
        if known is None or place(row) > place(known):
            by_attention[row.attention] = row
    return by_attention
