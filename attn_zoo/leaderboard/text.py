"""Leaderboard tables as text for the terminal, GitHub and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tabulate import tabulate

from attn_zoo.checks import check_text
from attn_zoo.escapes import escaped
from attn_zoo.leaderboard import notes
from attn_zoo.leaderboard.columns import COLUMNS, columns
from attn_zoo.leaderboard.data import as_csv, as_json
from attn_zoo.leaderboard.heatmap import titles
from attn_zoo.leaderboard.metrics import figure, spent, unit
from attn_zoo.leaderboard.table import COSTS, Row, Table
from attn_zoo.terminal import fit, wrap

FORMATS = ("terminal", "github", "csv", "json", "latex")
MOST_TASKS = 4
"""Largest number of tasks for which the terminal shows the tables of each task without being asked."""
MORE = (
    "{} tasks. Add --task NAME for the verdicts, costs and scores at equal budgets of one task, or --format github for those of "
    "all tasks."
)
"""Note below an overview without the tables of its tasks."""
_STYLES = {"github": "github", "latex": "latex_booktabs"}
LEFT = ("attention", "mechanism", "task", "verdict", "dominated by", "use case", "use", "against softmax", "tested on", "tokens")
"""Headings of columns that are aligned to the left."""
_VIEWS = {
    "scores": "",
    "costs": ", costs",
    "budgets": ", at equal budgets",
    "times": ", best validation score by time of training",
    "parts": ", by part of the test",
    "seeds": ", by seed",
}
"""Text that each view adds to the title of the task."""
_BLOCKS = ("costs", "budgets", "times")
"""Views whose rows are shown by implementation group."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Title, headings and entries of a table as text, before they are laid out."""

    title: str
    head: Sequence[str]
    body: Sequence[Sequence[str]]
    optional: Sequence[str] = ()
    """Headings of columns that a narrow terminal leaves out, in the order in which they are left out."""


def render(
    tables: Sequence[Table],
    format: str,
    *,
    overview: bool = False,
    seeds: bool = False,
    colours: str | None = None,
    by: str = "score",
    wide: bool = False,
    legend: bool = False,
) -> str:
    """Return leaderboard tables as text in one of ``FORMATS``.

    If there are several tasks, an overview comes first. Then each task has tables of its scores, its costs and its scores at equal
    budgets. In the terminal, more than ``MOST_TASKS`` tasks have only the overview, unless seeds or training times were asked for.
    CSV and JSON always hold everything.

    Args:
        overview: show only the overview and its notes. In the terminal the overview is the heat map.
        seeds: also show the score of every seed.
        colours: colour system of the terminal; None for plain text.
        by: order of the rows, one of ``ORDERS``.
        wide: show every column, even if the terminal is too narrow for all.
        legend: explain the columns in the terminal. LaTeX always explains them, and Markdown names the page that does.

    Raises:
        ValueError: the format is unknown.
    """
    from attn_zoo.leaderboard import overview as overviews  # imports this module

    check_text("format", format, FORMATS)
    if format == "csv":
        return as_csv(tables)
    if format == "json":
        return as_json(tables)
    many = format == "terminal" and len(tables) > MOST_TASKS and not (overview or seeds or any(table.at for table in tables))
    parts = [overviews.overview_text(tables, format, colours, by)] if overview or len(tables) > 1 else []
    views = [view for view in _VIEWS if seeds or view != "seeds"]
    on_page = format == "github"  # pages link to one that explains every column
    names = titles(tables) if len(tables) > 1 else [None]
    for table, name in () if overview or many else zip(tables, names, strict=True):
        parts += [tabulated(grid(table, view, by, name), format, wide) for view in views]
        parts.append(lines((notes.page_notes if on_page else notes.table_notes)(table), format))
    if on_page:
        legends = notes.page_legend(tables, overview)
    else:
        legends = notes.footnotes(tables, overview or many) if legend or format == "latex" else notes.short_legend(tables)
    if many:
        legends = [MORE.format(len(tables)), *legends]
    parts.append(lines(legends, format))
    return "\n\n".join(part for part in parts if part)


def grid(table: Table, view: str, by: str = "score", name: str | None = None) -> Grid:
    """Return one view of a table as text: the columns that belong to the view, with one line per row.

    If the view has no columns besides the names of the rows, the grid has no lines.

    Args:
        view: ``scores``, ``costs``, ``budgets``, ``times``, ``parts`` or ``seeds``.
        by: order of the rows. If it is a cost, this cost is shown beside the scores as well.
        name: name of the task in the title of the grid; by default the title of the task.
    """
    own = [column for column in columns(table) if view in column.views and column.text and column.shown(table)]
    if view == "scores" and by != "score":
        cost = COSTS[next(cost for cost in COSTS if cost.lower() == by)]
        own.insert(1 + [column.name for column in own].index("score"), COLUMNS[cost])
    body = [(row, [column.written(row, table) for column in own]) for row in table.rows] if len(own) > 1 else []
    optional = [column.head(table) for column in sorted(own, key=lambda column: column.leaves) if column.leaves]
    cells = _in_blocks(body, table, view) if view in _BLOCKS else [cells for _, cells in body]
    about = _about(table) if view == "scores" else _VIEWS[view]
    return Grid(f"{name or table.task['title']}{about}", [column.head(table) for column in own], cells, optional)


def _about(table: Table) -> str:
    """Return what the title of a table of scores says after the name of the task: length, chance level and best control."""
    percent = unit(table, " %")
    title = f": {table.task['length']} positions, chance "
    title += "unknown" if table.chance is None else figure(table.chance, table) + percent
    if table.best_control is not None:
        title += f", best control {table.control} {figure(table.best_control, table)}{percent}"
    return title


def _in_blocks(body: Sequence[tuple[Row, list[str]]], table: Table, view: str) -> list[list[str]]:
    """Return the cells of all rows, by implementation group. If there are several groups, each has its name above it. With equal
    budgets, each also has its budgets above it."""
    blocks = sorted({row.block for row, _ in body}, key=str)
    cells = []
    for block in blocks:
        above = [spent(b.cost, b.budgets.get(block)) for b in table.boards.values()] if view == "budgets" else []
        title = f"[{block.named(table.machines)}]" if len(blocks) > 1 else "budget" * bool(above)
        members = [line for row, line in body if row.block == block]
        cells += [[title, *(above or [""] * (len(members[0]) - 1))]] if title else []
        cells += members
    return cells


def tabulated(grid: Grid, format: str, wide: bool = False) -> str:
    """Return a table as text below its title. Without rows, the text is empty.

    Args:
        wide: show every column, even if the terminal is too narrow for all.
    """
    if not grid.body:
        return ""
    title, head, *body = ([escaped(cell, format) for cell in row] for row in ([grid.title], grid.head, *grid.body))
    if format == "terminal":
        right = [name for name in head if name not in LEFT]
        optional = [name for name in grid.optional if name in head]
        whole = right if len(right) == len(head) - 1 else ()  # a table of numbers is divided rather than wrapped
        return f"{wrap(title[0])}\n\n{fit(body, head, optional=optional, right=right, whole=whole, wide=wide)}"
    align = ["left" if name in LEFT else "right" for name in head]
    text = tabulate(body, head, tablefmt=_STYLES[format], disable_numparse=True, colalign=align)  # escapes LaTeX's characters
    if format == "latex":
        return f"% {title[0]}\n{text}"
    return f"**{title[0]}**\n\n{text}"


def lines(notes: Sequence[str], format: str) -> str:
    """Return the text of a list with one note per item. For the terminal, the text is wrapped to the terminal's width."""
    mark = "%" if format == "latex" else "-"
    text = "\n".join(f"{mark} {escaped(note, format)}" for note in notes)
    return wrap(text) if format == "terminal" else text
