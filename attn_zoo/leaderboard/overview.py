"""Overview of all scores as text, with one row per mechanism and one column per task.

In the terminal it is the heat map, with shades if the terminal has colour; in other formats it is a table.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Literal, cast

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from attn_zoo.escapes import label, terminal
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.averages import averages
from attn_zoo.leaderboard.heatmap import DARK_FROM, SHADES, Cell, HeatMap, footnotes, gap, heat_map
from attn_zoo.leaderboard.metrics import brief, estimated, figure, is_share, score, unit
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.leaderboard.table import Row, Table, titles
from attn_zoo.leaderboard.text import Grid, lines, tabulated
from attn_zoo.terminal import COLUMNS, columns

_NAME, _HEAD = 20, 10
"""Greatest number of letters of a mechanism's name, if the columns leave no room for more, and of a heading."""

Strip = tuple[str, Sequence[Text]]
"""Column of the heat map as text: the heading, one text per mechanism, and one for the chance level."""


def overview_text(tables: Sequence[Table], format: str, colours: str | None, by: str) -> str:
    """Return the overview as text: a heat map in the terminal, a table in other formats.

    Args:
        colours: colour system of the terminal; None for plain text.
        by: order of the rows, one of ``ORDERS``.
    """
    if format != "terminal":
        return tabulated(overview_grid(tables, by), format)
    return heat_map_text(heat_map(tables), colours)


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


def heat_map_text(found: HeatMap, colours: str | None = None) -> str:
    """Return the heat map as text that fits the terminal. Columns that do not fit side by side continue below.

    Without ``colours``, ``*`` marks the best mechanism on a task, and ``<`` marks each mechanism that is no better than the best
    control.

    Args:
        colours: colour system of rich: ``truecolor``, ``256``, ``standard``, ``windows``; None for plain text.
    """
    width = min(columns(), COLUMNS)
    heads = _heads(found, _HEAD)
    strips = _strips(found, heads, True, bool(colours))
    names = _names(found, max(_NAME, width - 1 - sum(map(_width, strips))))
    room = width - 1 - max(map(len, names))
    small = sum(map(_width, strips)) <= room
    if not small:
        heads = _heads(found, 6)
        strips = _strips(found, heads, False, bool(colours))
    blocks: list[list[Strip]] = [[]]
    for strip in strips:
        if blocks[-1] and sum(map(_width, [*blocks[-1], strip])) > room:
            blocks.append([])
        blocks[-1].append(strip)
    system = cast(Literal["truecolor", "256", "standard", "windows"] | None, colours)
    console = Console(file=io.StringIO(), force_terminal=bool(colours), color_system=system, width=width, highlight=False)
    for block in blocks:
        console.print(_table(found, names, block), end="\n\n")
    drawn = "\n".join(line.rstrip() for line in cast(io.StringIO, console.file).getvalue().rstrip().split("\n"))
    heads = [head.replace("\n", " ").strip() for head in heads]
    room = max(map(len, heads))
    legend = [
        f"{head:<{room}}  {column.title}, {column.metric}; {column.table.data_title}"
        for head, column in zip(heads, found.columns, strict=True)
    ]
    notes = footnotes(found, "Bold" if colours else "*", small) + ([] if colours else ["<: no better than the best control."])
    return f"{drawn}\n\n{lines([*legend, *notes], 'terminal')}"


def _names(found: HeatMap, letters: int) -> list[Text]:
    """Return the names of the lines, with at most ``letters`` letters."""
    names = [label(line.attention, letters - 4 * line.control) + " (c)" * line.control for line in found.lines]
    return list(map(Text, [*names, "chance"]))


def _table(found: HeatMap, names: Sequence[Text], block: Sequence[Strip]) -> RichTable:
    table = RichTable(box=None, padding=(0, 0, 0, 1), pad_edge=False, header_style="")
    table.add_column("", no_wrap=True)
    for head, _ in block:
        table.add_column(Text(head), justify="right", no_wrap=True)
    groups = [line.group for line in found.lines] + ["chance"]
    for at, name in enumerate(names):
        last = at + 2 < len(groups) and groups[at] != groups[at + 1]
        table.add_row(name, *(cells[at] for _, cells in block), end_section=last)
        if last:
            table.add_row()
    return table


def _strips(found: HeatMap, heads: Sequence[str], small: bool, coloured: bool) -> list[Strip]:
    """Return the columns of tasks, of the average if there is one, and of FLOPs."""

    def score(cell: Cell) -> Text:
        mark = "" if coloured else "*" if cell.leads else "<" if cell.shade == 0 else " "
        said = gap(cell) or cell.text + mark + (f" {cell.small:<5}" if small else "")
        if not coloured or not cell.level:
            return Text(said, ("bold " * cell.leads + "italic dim" * (not cell.trained)) if coloured else "")
        fill = SHADES[-cell.level]  # most terminals are dark
        ink = "#ffffff" if SHADES.index(fill) >= DARK_FROM else "#000000"
        return Text(said, f"{'bold ' if cell.leads else ''}{ink} on {fill}")

    end = ("" if coloured else " ") + " " * 6 * small
    made: list[Strip] = []
    for at, (column, head) in enumerate(zip(found.columns, heads, strict=True)):
        made.append((head, [*(score(line.cells[at]) for line in found.lines), Text(column.chance + end)]))
    if found.means.reason is None:
        share = next(column.table for column in found.columns if is_share(column.table))
        own = [None if line.average is None else line.average.mean for line in found.lines]
        made.append(("mean", [Text("-" if value is None else brief(value, share)) for value in (*own, found.means.chance)]))
    if found.flops:
        made.append(("FLOPs", [*(Text(line.flops or "-") for line in found.lines), Text()]))
    return made


def _width(strip: Strip) -> int:
    head, cells = strip
    return 1 + max(*map(len, head.split("\n")), *map(len, cells))


def _heads(found: HeatMap, letters: int) -> list[str]:
    """Return headings with the first letters of each task's name. If tasks have two directions, ``causal`` stands above the names
    of causal tasks. If several headings of a direction are equal, a number replaces the last letter."""
    ways = ["causal" * bool(column.table.task.get("causal")) for column in found.columns]
    names = [terminal(str(column.table.task["name"])).replace("_", "")[:letters] for column in found.columns]
    known = list(zip(ways, names, strict=True))
    heads = [
        name if known.count((way, name)) == 1 else f"{name[: letters - 1]}{known[: at + 1].count((way, name))}"
        for at, (way, name) in enumerate(known)
    ]
    return heads if len(set(ways)) == 1 else [f"{way}\n{head}" for way, head in zip(ways, heads, strict=True)]
