"""Sections of the page, one for each table: columns, rows with their details, and facts on task, data and settings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.leaderboard.columns import Column, columns
from attn_zoo.leaderboard.heatmap import titles
from attn_zoo.leaderboard.literature import RULE, Literature, LiteratureRow, literature
from attn_zoo.leaderboard.literature_text import difference_lines, printed, verdict_line
from attn_zoo.leaderboard.metrics import beyond_sizes, estimated, figure, mebibytes, score, seconds, spent, training_length, unit
from attn_zoo.leaderboard.notes import budget_notes, tuned_notes, warning_notes
from attn_zoo.leaderboard.page.details import Run, Runs
from attn_zoo.leaderboard.page.inline import NAMES
from attn_zoo.leaderboard.plots.style import Style
from attn_zoo.leaderboard.table import Board, Comparison, Row, Table, Within
from attn_zoo.leaderboard.text import Grid, grid
from attn_zoo.published import Figure
from attn_zoo.records.bounds import bounds

BoardView = tuple[Board, tuple[tuple[str, str, tuple[tuple[Row, Within, str, str], ...]], ...]]
"""Board, and for each of its blocks the name, the budget, and the rows with their scores and the cost spent."""
_ELSEWHERE = ("attention", "score", "mean")
"""Columns that the page shows in its own way."""
_VIEWS = {"budgets", "times", "parts", "seeds"}
"""Views that the page shows below the table, or as details."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of a cell, the number by which it is sorted, and its tooltip."""

    text: str
    value: float | None
    note: str


@dataclass(frozen=True, slots=True)
class Line:
    """Row of the table, and its panel of details."""

    id: str
    row: Row
    colour: str
    """CSS variable of the row's colour."""
    score: str
    unit: str
    whisker: tuple[float, float, float] | None
    """Positions of the interval's low end, mean and high end on the table's axis, from 0 to 1."""
    cells: tuple[Cell, ...]
    runs: tuple[Run, ...]
    command: str
    """Command that runs the row again; empty where its records have no files."""
    published: tuple[str, ...]
    """Published figures, each with the differences of its setting."""
    costs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Section of a table, with its rows, boards, comparisons and notes."""

    id: str
    title: str
    table: Table
    unit: str
    """Unit after the name of the metric."""
    chance: str
    chance_at: float | None
    """Position of chance on the axis of the whiskers, from 0 to 1."""
    columns: tuple[Column, ...]
    rows: tuple[Line, ...]
    parts: Grid
    """Scores of the parts of the test."""
    boards: tuple[BoardView, ...]
    pairs: tuple[tuple[str, tuple[tuple[bool, str], ...]], ...]
    """Label of each ranked row, and for every row above it whether they differ, with the difference and its corrected p value."""
    training: str
    """Length of training."""
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    board_notes: tuple[str, ...]
    literature: tuple[str, ...]


def sections(tables: Sequence[Table], style: Style, runs: Runs, machines: Mapping[str, str]) -> list[Section]:
    """Build a section for each table, with a unique id and title."""
    used: set[str] = set()
    return [
        _section(table, title, _id(table.task["name"], used), style, runs, machines)
        for table, title in zip(tables, titles(tables), strict=True)
    ]


def _section(table: Table, title: str, id: str, style: Style, runs: Runs, machines: Mapping[str, str]) -> Section:
    compared = literature(table)
    published = {row.label: row for row in compared.rows} if compared else {}
    heads = tuple(column for column in columns(table) if column.text and column.shown(table) and _is_of_page(column))
    heads += (_published(compared, published),) if compared else ()
    ends = _axis(table)
    used: set[str] = set()
    rows = tuple(
        Line(
            id=_id(f"{id}--{row.label}", used),
            row=row,
            colour=NAMES[style.colours[row.attention]],
            score=score(row, table),
            unit=unit(table, " %"),
            whisker=_whisker(row, ends),
            cells=tuple(_cell(column, row, table) for column in heads),
            runs=tuple(runs.lines(row, table)),
            command=runs.command(row) if row.files else "",
            published=tuple(difference_lines(compared, published[row.label])) if compared and row.label in published else (),
            costs=_costs(row),
        )
        for row in table.rows
    )
    return Section(
        id=id,
        title=title,
        table=table,
        unit=unit(table),
        chance="not recorded" if table.chance is None else figure(table.chance, table) + unit(table, " %"),
        chance_at=None if table.chance is None else _share(table.chance, ends),
        columns=heads,
        rows=rows,
        parts=grid(table, "parts"),
        boards=tuple(_board(board, table, machines) for board in (*table.boards.values(), *table.at)),
        pairs=_pairs(table),
        training=training_length(table.budget),
        facts=_facts(table),
        notes=(*warning_notes(table), *tuned_notes(table, table.rows)),
        board_notes=tuple(budget_notes(table)[1:]),
        literature=tuple(_literature(table, compared)),
    )


def _is_of_page(column: Column) -> bool:
    return column.name not in _ELSEWHERE and not set(column.views) & _VIEWS


def _cell(column: Column, row: Row, table: Table) -> Cell:
    return Cell(column.written(row, table), column.sorted_by(row, table), column.tip(row, table))


def _pairs(table: Table) -> tuple[tuple[str, tuple[tuple[bool, str], ...]], ...]:
    """The lower half of the matrix of comparisons, rows and columns in the order of the table."""
    known = {frozenset((c.better, c.worse)): c for c in table.ranking.comparisons}
    labels = [row.label for row in table.rows if any(row.label in pair for pair in known)]

    def cell(pair: Comparison) -> tuple[bool, str]:
        return pair.apart, f"{pair.better} {estimated(pair.difference, table, '+')}, p = {pair.p:.2g}"

    return tuple((one, tuple(cell(known[frozenset((one, other))]) for other in labels[:at])) for at, one in enumerate(labels))


def _whisker(row: Row, ends: tuple[float, float]) -> tuple[float, float, float] | None:
    test = row.test
    return None if test is None else (_share(test.low, ends), _share(test.mean, ends), _share(test.high, ends))


def _axis(table: Table) -> tuple[float, float]:
    """Ends of the axis that holds chance and the intervals of all scores, within the bounds of the metric."""
    ends = [] if table.chance is None else [table.chance]
    ends += [end for row in table.rows if row.test for end in (row.test.low, row.test.high)]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    least, most = bounds(table.task["metric"])
    return max(low, least), min(high, most)


def _share(value: float, ends: tuple[float, float]) -> float:
    low, high = ends
    return 0.5 if high <= low else max(0.0, min(1.0, (value - low) / (high - low)))


def _costs(row: Row) -> tuple[tuple[str, str], ...]:
    span = row.train_seconds_range
    derived = "" if row.training_flops_counted else " (taken as three forward passes)"
    between = f" ({seconds(span[0])} to {seconds(span[1])} s)" if span and len(row.seeds) > 1 else ""
    known: list[tuple[str, float | None, Callable[[float], str]]] = [
        ("parameters", row.parameters, "{:,}".format),
        ("FLOPs of a forward pass, per example", row.flops_per_example, "{:,}".format),
        (f"FLOPs of a forward and backward pass, per example{derived}", row.training_flops_per_example, "{:,.0f}".format),
        ("training time, median over seeds", row.train_seconds, lambda value: f"{seconds(value)} s{between}"),
        ("examples per second in training", row.examples_per_second, "{:,.0f}".format),
        ("peak memory of a training step", row.peak_bytes, mebibytes),
    ]
    return tuple((name, "not measured" if value is None else form(value)) for name, value, form in known)


def _board(board: Board, table: Table, machines: Mapping[str, str]) -> BoardView:
    blocks = []
    for block in sorted({row.block for row in table.rows if row.label in board.rows}, key=str):
        own = [(row, board.rows[row.label]) for row in table.rows if row.block == block and row.label in board.rows]
        own.sort(key=lambda pair: (pair[0].control, -table.sign * pair[1].score.mean if pair[1].score else math.inf, pair[0].label))
        lines = tuple((row, within, estimated(within.score, table), spent(board.cost, within.spent)) for row, within in own)
        name = str(block) if len(machines) > 1 else block.measured_as
        blocks.append((name, spent(board.cost, board.budgets.get(block)), lines))
    return board, tuple(blocks)


def _published(compared: Literature, rows: Mapping[str, LiteratureRow]) -> Column:
    def found(row: Row) -> list[Figure]:
        return [figure for of_source in rows[row.label].figures.values() for figure in of_source] if row.label in rows else []

    cited = "; ".join(f"{source.title}: {source.cite}" for source in compared.sources)
    return Column(
        "published",
        "published",
        lambda row, table: printed(found(row)) if found(row) else "-",
        lambda row, table: max((figure.value for figure in found(row)), default=None),
        unit="%",
        note=f"scores published by others, in their settings, not in this one: {cited}",
    )


def _facts(table: Table) -> tuple[tuple[str, str], ...]:
    task, model, budget = table.task, table.model, table.budget
    backbone = f" {model['backbone']}," if model.get("backbone") else ""
    rate, decay = (budget[name] for name in ("learning_rate", "weight_decay"))
    rates = f"learning rate {_plain(rate)}, weight decay {_plain(decay)}, warm-up {budget['warmup_steps']}"
    return (
        ("what is asked", str(task.get("summary", "-"))),
        ("data", f"{table.data_title}; licence: {task.get('licence', '-')}"),
        ("source", str(task.get("source", "-"))),
        ("task options", ", ".join(f"{key}={value}" for key, value in table.task_options.items()) or "-"),
        (
            "network",
            f"{backbone} width {model['dim']}, depth {model['depth']}, {model['heads']} heads{beyond_sizes(model)}".strip(),
        ),
        ("budget", f"{training_length(budget)}; {rates}"),
        ("run as", f"{table.precision} on {table.device}, protocol {table.protocol}, task version {task['version']}"),
        *(
            (f"{split} split", f"{d.get('examples', 0):,} examples, SHA-256 {d.get('digest', '-')}")
            for split, d in table.data.items()
        ),
    )


def _plain(setting: Any) -> str:
    """A number, or the range that rows were tuned over."""
    return setting if isinstance(setting, str) else f"{setting:g}"


def _literature(table: Table, compared: Literature | None) -> list[str]:
    """Verdicts on published orderings, then sources of the figures and their known flaws."""
    if compared is None:
        return []
    verdicts = [verdict_line(verdict, table.task["metric"]) for verdict in compared.verdicts]
    said = [f"{source.title}: {source.cite}; {source.hardware}" for source in compared.sources]
    said += [f"{title}, known flaws: {'; '.join(flaws)}" for title, flaws in compared.flaws.items() if flaws]
    return [*verdicts, *([f"Orderings are {RULE}."] if verdicts else []), *said]


def _id(text: str, used: set[str]) -> str:
    """Unique identifier for an address, made from ``text``."""
    plain = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-") or "row"
    found, number = plain, 2
    while found in used:
        found, number = f"{plain}-{number}", number + 1
    used.add(found)
    return found
