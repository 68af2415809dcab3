"""Contents of the heat map: mechanisms by tasks, from the tables of a leaderboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.averages import Averages, averages
from attn_zoo.leaderboard.heatmap.costs import CostColumn
from attn_zoo.leaderboard.heatmap.shades import shades, shown_rows, unshaded
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.leaderboard.table import Row, Table

MOST_LINES = 60
"""Greatest number of mechanisms shown; beyond it, those with the least average shade are left out."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Cell of one mechanism on one task."""

    row: Row | None
    """Row that is shown; None where the mechanism was not run."""
    shade: float | None
    """Shade from 0, at the best control and below, to 1; None where the column is not shaded or there is no score."""
    leads: bool
    """True if no row is better beyond noise (without ranks: in its mean); False where no mechanism beats the best control."""
    marked: bool
    """True if this is the best control, where shade begins."""


_EMPTY = Cell(None, None, False, False)


@dataclass(frozen=True, slots=True)
class Column:
    """Column of one task."""

    table: Table
    title: str
    """Unique title."""
    unshaded: str | None
    """Reason why the column is not shaded; None where it is."""


@dataclass(frozen=True, slots=True)
class Line:
    """Line of one mechanism or control, with its cells and costs."""

    attention: str
    control: bool
    cells: tuple[Cell, ...]
    costs: tuple[str, ...]
    """Costs as text; empty where unknown."""
    average: Estimate | None
    """Average over tasks; None where the cells belong to several rows, or their row has none (see ``averages``)."""


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Heat map of mechanisms, the greatest average shade first, then controls, by tasks."""

    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    costs: tuple[CostColumn, ...]
    means: Averages
    left_out: int
    """Number of mechanisms beyond ``MOST_LINES``."""
    several: tuple[str, ...]
    """Mechanisms recorded with several settings on a task, of which the best on validation is shown."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Numbers of seeds that rows have, in ascending order."""
        rows = [cell.row for line in self.lines for cell in line.cells]
        return tuple(sorted({len(row.seeds) for row in rows if row and row.test}))


def heat_map(tables: Sequence[Table], costs: Sequence[CostColumn] = ()) -> HeatMap:
    """Build the heat map of ``tables``, with a column for each and columns of ``costs``.

    A mechanism has one line. Where a table holds several rows of it, the row with the best validation score is shown, so that
    the choice does not use test scores. Lines are sorted by average shade, in which an empty cell counts as no shade.
    """
    shown = [shown_rows(table) for table in tables]
    columns = tuple(
        Column(table, title, unshaded(table, list(rows.values())))
        for table, title, rows in zip(tables, titles(tables), shown, strict=True)
    )
    cells = {
        (name, at): cell for at, (table, rows) in enumerate(zip(tables, shown, strict=True)) for name, cell in _cells(table, rows)
    }
    controls = {row.attention: row.control for table in tables for row in table.rows}
    order = sorted(controls, key=lambda name: (controls[name], *_place(name, cells, tables), name))
    mechanisms = [name for name in order if not controls[name]]
    kept = {*mechanisms[:MOST_LINES], *(name for name in order if controls[name])}
    means = averages(tables)

    def line(name: str) -> Line:
        own = tuple(cells.get((name, at), _EMPTY) for at in range(len(tables)))
        beside = tuple(column.written(name) for column in costs)
        return Line(name, controls[name], own, beside, _average(own, means))

    repeated = {name for table in tables for name in _repeated(table)}
    return HeatMap(
        columns=columns,
        lines=tuple(line(name) for name in order if name in kept),
        costs=tuple(costs),
        means=means,
        left_out=len(mechanisms[MOST_LINES:]),
        several=tuple(name for name in order if name in kept & repeated),
    )


def titles(tables: Sequence[Table]) -> list[str]:
    """Unique title of each table: the task's, with the settings that distinguish tables of a task, numbered if still equal."""
    names = [str(table.task["title"]) for table in tables]
    for words in (
        ["causal" * bool(table.task.get("causal")) for table in tables],
        ["no convolution" * (not table.model.get("short_convolution")) for table in tables],
        ["output gate" * (table.model.get("output_gate", "none") != "none") for table in tables],
        ["shared keys and values" * bool(table.model.get("key_value_heads")) for table in tables],
        [_rate(table.budget.get("learning_rate")) for table in tables],
    ):
        names = distinct(names, words)
    return numbered(names)


def _rate(rate: object) -> str:
    return f"rate {rate:g}" if isinstance(rate, float) else "rate tuned"


def distinct(names: Sequence[str], words: Sequence[str]) -> list[str]:
    """Append its word to each name that occurs with several words."""
    known = grouped(zip(names, words, strict=True))
    return [f"{name}, {word}" if word and len(set(known[name])) > 1 else name for name, word in zip(names, words, strict=True)]


def numbered(names: Sequence[str], mark: str = " #") -> list[str]:
    """Append a number, after ``mark``, to each name that occurs several times."""
    return [name if names.count(name) == 1 else f"{name}{mark}{names[: at + 1].count(name)}" for at, name in enumerate(names)]


def _repeated(table: Table) -> set[str]:
    names = [row.attention for row in table.rows]
    return {name for name in names if names.count(name) > 1}


def _cells(table: Table, shown: Mapping[str, Row]) -> list[tuple[str, Cell]]:
    depth = shades(table, list(shown.values()))
    means = [table.sign * row.test.mean for row in shown.values() if row.test and not row.control]
    ranks = [row.rank for row in shown.values() if row.rank is not None]

    def leads(row: Row) -> bool:
        if row.control or row.test is None or (table.best_control is not None and not depth):
            return False
        return row.rank == min(ranks) if ranks else table.sign * row.test.mean == max(means)

    return [(name, Cell(row, depth.get(row.label), leads(row), row.label == table.control)) for name, row in shown.items()]


def _average(cells: Sequence[Cell], means: Averages) -> Estimate | None:
    """Average of the row to which all cells belong; None where they belong to several rows or it has no average."""
    labels = {cell.row.label for cell in cells if cell.row}
    return means.rows.get(labels.pop()) if len(labels) == 1 else None


def _place(name: str, cells: Mapping[tuple[str, int], Cell], tables: Sequence[Table]) -> tuple[float, float]:
    """Sort key of a line: average shade, then the mean place in the tables."""
    own = [cells.get((name, at)) for at in range(len(tables))]
    shaded = sum(cell.shade for cell in own if cell and cell.shade is not None)
    places = [table.rows.index(cell.row) / len(table.rows) for cell, table in zip(own, tables, strict=True) if cell and cell.row]
    return -round(shaded / len(tables), 9), sum(places) / len(places)
