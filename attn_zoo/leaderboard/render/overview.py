"""Overview of all scores in one table: attentions by tasks."""

from __future__ import annotations

from collections.abc import Sequence

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.averages import averages
from attn_zoo.leaderboard.heatmap.model import titles
from attn_zoo.leaderboard.render.text import Grid, estimated, figure, is_share, name, score, unit
from attn_zoo.leaderboard.rows import Row, Table


def overview_grid(tables: Sequence[Table]) -> Grid:
    """Grid of scores by attention and task, with averages over tasks where rows have equal cells."""
    heads = [title + unit(table) for title, table in zip(titles(tables), tables, strict=True)]
    cells = {(row.label, at): _cell(row, table) for at, table in enumerate(tables) for row in table.rows}
    first = {row.label: row for table in tables for row in table.rows}
    order = _order(tables, first)
    body = [[name(first[label]), *(cells.get((label, at), "-") for at in range(len(tables)))] for label in order]
    body.append(["chance", *("-" if t.chance is None else figure(t.chance, t) for t in tables)])
    body.append(["data", *(t.data_title for t in tables)])
    means = averages(tables)
    if means.reason is None:
        share = next(table for table in tables if is_share(table))
        heads.append("average" + unit(share))
        chance = "-" if means.chance is None else figure(means.chance, share)
        column = [*(estimated(means.rows.get(label), share) for label in order), chance, ""]
        body = [[*line, cell] for line, cell in zip(body, column, strict=True)]
    return Grid("Test scores", ["attention", *heads], body)


def _cell(row: Row, table: Table) -> str:
    """Score, with the number of its seeds where others failed."""
    partial = row.scores.test and row.scores.failures
    return score(row, table) + (f" ({len(row.scores.seeds)} of {row.scores.runs})" if partial else "")


def _order(tables: Sequence[Table], rows: dict[str, Row]) -> list[str]:
    """Labels sorted by the mean place of their rows in the tables, contenders before controls."""
    places = grouped((row.label, place / len(table.rows)) for table in tables for place, row in enumerate(table.rows))
    return sorted(rows, key=lambda label: (rows[label].control, sum(places[label]) / len(places[label]), label))
