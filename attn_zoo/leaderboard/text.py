"""Leaderboard tables as text for the terminal, GitHub and LaTeX, with the notes below them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from attn_zoo.checks import check_number, check_text
from attn_zoo.escapes import escaped
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.averages import averages
from attn_zoo.leaderboard.columns import COLUMNS, columns
from attn_zoo.leaderboard.compare import ORDERS, ordered
from attn_zoo.leaderboard.data import as_csv, as_json
from attn_zoo.leaderboard.metrics import beyond_sizes, digest_of, figure, optional, spent, training_length, unit
from attn_zoo.leaderboard.rank import tables
from attn_zoo.leaderboard.table import COSTS, Row, Table, Verdict, titles
from attn_zoo.records import Store
from attn_zoo.terminal import fit, wrap

FORMATS = ("terminal", "github", "csv", "json", "latex")
MOST_TASKS = 4
"""Largest number of tasks for which the terminal shows the tables of each task without being asked."""
MORE = (
    "{} tasks. Add --task NAME for the verdicts, costs and scores at equal budgets of one task, or --format github for those of "
    "all tasks."
)
"""Note below an overview without the tables of its tasks."""
LEFT = ("attention", "mechanism", "task", "verdict", "dominated by", "use case", "use", "against softmax", "tested on", "tokens")
"""Headings of columns that are aligned to the left."""
COLUMNS_PAGE = "docs/reference/columns.md"
"""Page that explains every column and every statistic."""
_NAMED = 10
"""Greatest number of rows that a note on a page names."""
_STYLES = {"github": "github", "latex": "latex_booktabs"}
_VIEWS = {
    "scores": "",
    "costs": ", costs",
    "budgets": ", at equal budgets",
    "times": ", best validation score by time of training",
    "parts": ", by part of the test",
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


def leaderboard(
    root: str | Path,
    *,
    format: str = "terminal",
    task: str | None = None,
    attention: str | None = None,
    overview: bool = False,
    by: str = "score",
    equal: Mapping[str, float] | None = None,
    at: Sequence[float] = (),
    colours: str | None = None,
    wide: bool = False,
) -> str:
    """Return the leaderboard tables of a folder of records as text.

    Files that are not complete records are listed below the tables, except in CSV and JSON.

    Args:
        root: folder of records, or a packed file of records.
        overview: show only one table of scores, with a row per mechanism and a column per task; in the terminal, a heat map. CSV
            and JSON always have all tables.
        by: order of rows, one of ``ORDERS``.
        equal: budgets at which configurations are compared, by cost (``time``, ``FLOPs`` or ``memory``); see ``tables``.
        at: training times in seconds. A further column per time shows the best validation score of each row until then.
        colours: colour system of the terminal: ``truecolor``, ``256`` or ``standard``; None for plain text.
        wide: show every column, even if the terminal is too narrow for all.

    Raises:
        ValueError: the format or the order is unknown, or a time or budget is not a number above 0.
        OSError: ``root`` is neither a folder nor a packed file.
    """
    check_text("format", format, FORMATS)
    check_text("by", by, ORDERS)
    for name, number in [*(("at", time) for time in at), *((f"equal {kind}", most) for kind, most in (equal or {}).items())]:
        check_number(name, number, above=0)
    records, damaged = Store(root).load()
    made = [ordered(table, by) for table in tables(records, task=task, attention=attention, equal=equal, at=at)]
    if made or format in ("csv", "json"):
        text = render(made, format, overview=overview, colours=colours, by=by, wide=wide)
    else:
        wanted = "".join(f" {kind} {name!r}" for kind, name in (("task", task), ("attention", attention)) if name)
        pairs = sorted({f"{record.spec.attention} on {record.spec.task}" for record in records})
        there = f". Recorded: {', '.join(pairs)}" if pairs else " yet; attn-zoo run makes one"
        text = f"no records{' of' + wanted if wanted else ''} in {str(root)!r}{there}"
    if damaged and format not in ("csv", "json"):
        head, mark = ("% ", "%") if format == "latex" else ("", "-")
        text += f"\n\n{head}Files that were left out because they are not complete records:\n"
        text += "\n".join(f"{mark} {escaped(f'{item.path.name}: {item.reason}', format)}" for item in damaged)
    return text


def render(
    tables: Sequence[Table],
    format: str,
    *,
    overview: bool = False,
    colours: str | None = None,
    by: str = "score",
    wide: bool = False,
) -> str:
    """Return leaderboard tables as text in one of ``FORMATS``.

    If there are several tasks, an overview comes first. Then each task has tables of its scores, its costs and its scores at equal
    budgets. In the terminal, more than ``MOST_TASKS`` tasks have only the overview, unless training times were asked for.
    CSV and JSON always hold everything.

    Args:
        overview: show only the overview and its notes. In the terminal the overview is the heat map.
        colours: colour system of the terminal; None for plain text.
        by: order of the rows, one of ``ORDERS``.
        wide: show every column, even if the terminal is too narrow for all.

    Raises:
        ValueError: the format is unknown.
    """
    check_text("format", format, FORMATS)
    if format in ("csv", "json"):
        return as_csv(tables) if format == "csv" else as_json(tables)
    many = format == "terminal" and len(tables) > MOST_TASKS and not (overview or any(table.at for table in tables))
    parts = []
    if overview or len(tables) > 1:
        from attn_zoo.leaderboard.overview import overview_text  # imports this module

        parts.append(overview_text(tables, format, colours, by))
    names = titles(tables) if len(tables) > 1 else [None]
    for table, name in () if overview or many else zip(tables, names, strict=True):
        parts += [tabulated(grid(table, view, by, name), format, wide) for view in _VIEWS]
        parts.append(lines(page_notes(table) if format == "github" else table_notes(table), format))
    legends = [MORE.format(len(tables))] if many else []
    parts.append(lines([*legends, *legend(tables, overview or many)], format))
    return "\n\n".join(part for part in parts if part)


def grid(table: Table, view: str, by: str = "score", name: str | None = None) -> Grid:
    """Return one view of a table as text: the columns that belong to the view, with one line per row.

    If the view has no columns besides the names of the rows, the grid has no lines.

    Args:
        view: ``scores``, ``costs``, ``budgets``, ``times`` or ``parts``.
        by: order of the rows. If it is a cost, this cost is shown beside the scores as well.
        name: name of the task in the title of the grid; by default the title of the task.
    """
    own = [column for column in columns(table) if view in column.views and column.text and column.shown(table)]
    if view == "scores" and by != "score":
        own.insert(1 + [column.name for column in own].index("score"), COLUMNS[COSTS[ORDERS[by]]])
    body = [(row, [column.written(row, table) for column in own]) for row in table.rows] if len(own) > 1 else []
    optional = [column.head(table) for column in sorted(own, key=lambda column: column.leaves) if column.leaves]
    cells = _in_blocks(body, table, view) if view in _BLOCKS else [cells for _, cells in body]
    about = _about(table) if view == "scores" else _VIEWS[view]
    return Grid(f"{name or table.task['title']}{about}", [column.head(table) for column in own], cells, optional)


def _about(table: Table) -> str:
    """Return what the title of a table of scores says after the name of the task: length, chance level and best control."""
    percent = unit(table, " %")
    title = f": {table.task['length']:,} positions, chance "
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
    if format == "terminal":
        right = [name for name in grid.head if name not in LEFT]
        whole = right if len(right) == len(grid.head) - 1 else ()  # a table of numbers is divided rather than wrapped
        text = fit(grid.body, grid.head, optional=grid.optional, right=right, whole=whole, wide=wide)
        return f"{wrap(escaped(grid.title, format))}\n\n{text}"
    title, head, *body = ([escaped(cell, format) for cell in row] for row in ([grid.title], grid.head, *grid.body))
    align = ["left" if name in LEFT else "right" for name in head]
    text = tabulate(body, head, tablefmt=_STYLES[format], disable_numparse=True, colalign=align)  # escapes LaTeX's characters
    return f"% {title[0]}\n{text}" if format == "latex" else f"**{title[0]}**\n\n{text}"


def lines(notes: Sequence[str], format: str) -> str:
    """Return the text of a list with one note per item. For the terminal, the text is wrapped to the terminal's width."""
    mark = "%" if format == "latex" else "-"
    text = "\n".join(f"{mark} {escaped(note, format)}" for note in notes)
    return wrap(text) if format == "terminal" else text


def table_notes(table: Table) -> list[str]:
    """Return the notes below the table of one task: failures, warnings, missing verdicts, budgets, data and settings."""
    notes = [f"{row.label}: {failure}" for row in table.rows for failure in row.failures]
    notes += _row_lines((row.label, warning) for row in table.rows for warning in row.warnings)
    notes += [table.judgement.reason] if table.judgement.reason else []
    notes += _row_lines((row.label, row.unjudged) for row in table.rows if row.unjudged)
    notes += sorted({row.unsteady for row in table.rows if row.unsteady})
    if _has_different_seeds(table):
        notes.append("rows were run with different seeds, so compare them with care")
    notes += [*_budget_notes(table), *_tuned_notes(table)]
    changed = ", ".join(f"{key}={value}" for key, value in table.task_options.items())
    test = table.data.get("test", {})
    notes.append(f"data: {table.data_title}")
    notes.append(
        f"task options {changed}; {_network(table)}; {training_length(table.budget)}; {table.precision} on {table.device}; "
        f"test split of {test.get('examples', '?')} examples, {digest_of(test, 'digest', 8)}"
    )
    return notes


def page_notes(table: Table) -> list[str]:
    """Return at most two notes below the table of one task in Markdown: cautions about rows, if any, and one note on data,
    network, training and test examples.

    ``table_notes`` returns all details.
    """
    rows = [row.label for row in table.rows if row.failures or row.warnings or row.unjudged]
    named = ", ".join(rows) if len(rows) <= _NAMED else f"{len(rows)} of {len(table.rows)} rows"
    cautions = [table.judgement.reason] if table.judgement.reason else []
    cautions += ["rows were run with different seeds"] if _has_different_seeds(table) else []
    cautions += sorted({row.unsteady for row in table.rows if row.unsteady})
    cautions += [f"failed seeds, warnings or no verdict (run `attn-zoo show ROW` to see which): {named}"] if rows else []
    tested = f"{table.data.get('test', {}).get('examples', '?')} test examples"
    settings = f"data: {table.data_title}; {_network(table)}; {training_length(table.budget)}; {tested}"
    return [*(["; ".join(cautions)] if cautions else []), settings]


def _has_different_seeds(table: Table) -> bool:
    return len({row.seeds for row in table.rows if row.test}) > 1


def _network(table: Table) -> str:
    model = table.model
    return f"network dim={model['dim']} depth={model['depth']} heads={model['heads']}{beyond_sizes(model)}"


def _tuned_notes(table: Table) -> list[str]:
    """Return a note for each row whose settings a search found, and a warning if rows had different numbers of trials."""
    notes = []
    for row in table.rows:
        if tuning := row.tuning:
            values = {key: f"{value:.4g}" if isinstance(value, float) else str(value) for key, value in row.tuned.items()}
            found = ", ".join(f"{key.partition('.')[2]}={value}" for key, value in values.items())
            failed = f" ({tuning.failed} of them without a score)" if tuning.failed else ""
            score = optional(tuning.best_valid, lambda value: figure(value, table) + unit(table, " %"))
            notes.append(
                f"{row.label}: {found}, best of {row.trials} trials{failed} by validation score ({score}, "
                f"seed {tuning.seed}); study {tuning.study}"
            )
    counts = grouped((row.trials, row.label) for row in table.rows)
    if notes and len(counts) > 1:
        told = "; ".join(f"{count}: {', '.join(labels)}" for count, labels in sorted(counts.items()))
        notes.append(
            f"rows were tuned with different numbers of trials ({told}), and more trials find better settings: compare with care"
        )
    return notes


def _budget_notes(table: Table) -> list[str]:
    """Return notes on how the budgets of a table were chosen, and the remarks on scores within a budget."""
    shown = {row.label for row in table.rows}
    rules = grouped((board.rule, board.cost) for board in table.boards.values())
    named = [(f"at equal {board.cost}", board) for board in table.boards.values()]
    named += [(f"after {spent('time', board.budget)}", board) for board in table.at]
    notes: list[str] = []
    for where, board in named:
        told = ((label, within.note) for label, within in board.rows.items() if within.score and within.note and label in shown)
        notes += [f"{where}, {line}" for line in _row_lines(told)]
    if any(row.training_flops_per_example and not row.training_flops_counted for row in table.rows):
        notes.append("the FLOPs of training were not counted for every row; where they were not, they are three forward passes")
    chosen = "; ".join(f"for {' and '.join(costs)}, {rule}" for rule, costs in rules.items())
    return [f"equal budgets: {chosen}", *notes] if chosen else []


def _row_lines(said: Iterable[tuple[str, str]]) -> list[str]:
    """Return one line ``ROW, ROW: TEXT`` per text, with the labels of all rows that have this text."""
    return [f"{', '.join(labels)}: {text}" for text, labels in grouped((text, label) for label, text in said).items()]


def legend(tables: Sequence[Table], overview: bool = False) -> list[str]:
    """Return the notes that stand once below all tables: what the marks mean, the page that explains every column, the protocol,
    and the machines.

    Args:
        overview: True if only the overview is shown.
    """
    words = ["± is half of the 95 % interval over seeds."]
    words += ["2/3 means that two of three seeds learned the task."] if any(r.learned for t in tables for r in t.rows) else []
    said = [_protocols(tables)]
    if len(tables) > 1:
        found = averages(tables)
        left = ", ".join(str(table.task["title"]) for table in tables if table.task["title"] not in found.tasks)
        words += ["The average is the interquartile mean over tasks and seeds."] if overview and not found.reason else []
        said += [f"No average over tasks: {found.reason}."] if found.reason else [f"The average leaves out {left}."] if left else []
    words += ["(c) marks a control.", f"Columns and statistics: {COLUMNS_PAGE}."]
    return [
        " ".join(words),
        " ".join([*said, *(_beaten_by_none(tables) if overview else [])]),
        *(() if overview else _machines(tables)),
    ]


def _beaten_by_none(tables: Sequence[Table]) -> list[str]:
    """Return a sentence that names the tasks on which no mechanism is better than the best control. If there are none, the list is
    empty."""
    failing = {Verdict.NO_BETTER, Verdict.NOT_TRAINED}
    verdicts = [(table.task["title"], {row.verdict for row in table.rows} - {None}) for table in tables]
    named = [title for title, found in verdicts if found and found <= failing]
    return [f"No mechanism is better than the best control on {' and '.join(named)}."] if named else []


def _machines(tables: Sequence[Table]) -> list[str]:
    """Return the machines behind their short names. If there is only one machine, the result is empty."""
    machines = tables[0].machines if tables else {}
    if len(machines) < 2:
        return []
    said = "The runs are from several machines. Measured costs are compared only between rows of one machine and implementation."
    return [said, *(f"{short}: {machine}." for machine, short in machines.items())]


def _protocols(tables: Sequence[Table]) -> str:
    """Return the protocol and, for runs until the criterion, when a run ended."""
    caps = [int(table.budget["steps"]) for table in tables if table.budget.get("ceiling")]
    run = "A run" if len(caps) == len(tables) else f"On {len(caps)} of {len(tables)} tasks, a run"
    most = " or ".join(f"{cap:,}" for cap in sorted(set(caps)))
    ended = f" {run} ends when it has learned the task, or after {most} steps." if caps else ""
    versions = sorted({table.protocol for table in tables})
    return f"The runs follow protocol{'s' * (len(versions) > 1)} {' and '.join(versions)}.{ended}"
