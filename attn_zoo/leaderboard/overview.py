"""Overview of all scores in one table, with one row per mechanism and one column per task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.averages import averages
from attn_zoo.leaderboard.heat_costs import CostColumn, recorded_columns
from attn_zoo.leaderboard.heatmap import heat_map, titles
from attn_zoo.leaderboard.metrics import estimated, figure, is_share, score, unit
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.leaderboard.table import Row, Table
from attn_zoo.leaderboard.text import Grid, tabulated


def overview_text(tables: Sequence[Table], format: str, costs: Sequence[CostColumn], colours: str | None, by: str) -> str:
    """Return the overview as text: a heat map in the terminal, a table in other formats.

    Args:
        colours: colour system of the terminal; None for plain text.
        by: order of the rows, one of ``ORDERS``.
    """
    if format != "terminal":
        return tabulated(overview_grid(tables, by), format)
    from attn_zoo.leaderboard.heat_text import heat_map_text  # imported here: other formats do not need rich

    return heat_map_text(heat_map(tables, costs or recorded_columns(tables)), colours)


def overview_grid(tables: Sequence[Table], by: str = "score") -> Grid:
    """Return a table of scores with one row per mechanism and one column per task. If at least two rows have an average over
    the tasks (see ``averages``), a further column shows it.

    Args:
        by: ``score`` to sort rows by their average, the best first. Any other value sorts them by mean place in the tables.
    """
    heads = [title + unit(table) for title, table in zip(titles(tables), tables, strict=True)]
    cells = {(row.label, at): _cell(row, table) for at, table in enumerate(tables) for row in table.rows}
    first = {row.label: row for table in tables for row in table.rows}
    means = averages(tables)
    order = _order(tables, first, means.rows if by == "score" else {})
    body = [[first[label].name, *(cells.get((label, at), "-") for at in range(len(tables)))] for label in order]
    body.append(["chance", *("-" if t.chance is None else figure(t.chance, t) for t in tables)])
    body.append(["data", *(t.data_title for t in tables)])
    if means.reason is None:
        share = next(table for table in tables if is_share(table))
        heads.append("average" + unit(share))
        chance = "-" if means.chance is None else figure(means.chance, share)
        column = [*(estimated(means.rows.get(label), share) for label in order), chance, ""]
        body = [[*line, cell] for line, cell in zip(body, column, strict=True)]
    return Grid("Test scores", ["attention", *heads], body)


def _cell(row: Row, table: Table) -> str:
    """Return a score as text. If seeds failed, the number of the others follows; for runs until a criterion, the number of seeds
    that learned the task."""
    partial = row.test and row.failures
    learned = f", {row.learned.count}/{row.learned.of}" if row.learned else ""
    return score(row, table) + (f" ({len(row.seeds)} of {row.attempts})" if partial else "") + learned


def _order(tables: Sequence[Table], rows: Mapping[str, Row], means: Mapping[str, Estimate]) -> list[str]:
    """Return labels sorted by their mean over tasks, best first, then by their mean place in the tables. Contenders precede
    controls.
    """
    places = grouped((row.label, place / len(table.rows)) for table in tables for place, row in enumerate(table.rows))

    def key(label: str) -> tuple[bool, float, float, str]:
        mean = means[label].mean if label in means else -math.inf
        return rows[label].control, -mean, sum(places[label]) / len(places[label]), label

    return sorted(rows, key=key)
