"""One section a table: its columns, its rows with all that stands behind them, and what it is of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.leaderboard.beside import RULE, Beside, beside
from attn_zoo.leaderboard.beside_text import difference_lines, verdict_line
from attn_zoo.leaderboard.heatmap.model import titles
from attn_zoo.leaderboard.page.columns import Cell, Column, cells, columns
from attn_zoo.leaderboard.page.details import Run, Runs
from attn_zoo.leaderboard.page.inline import NAMES
from attn_zoo.leaderboard.plots.style import Style
from attn_zoo.leaderboard.render.costs import budget_notes
from attn_zoo.leaderboard.render.text import (
    beyond_sizes,
    estimated,
    figure,
    mebibytes,
    optional,
    score,
    seconds,
    short,
    training_length,
    unit,
)
from attn_zoo.leaderboard.rows import Board, Comparison, Entry, Row, Table
from attn_zoo.leaderboard.tuned import tuning_notes

_LISTED_PAIRS = 120
"""A table of more comparisons than this is left to the JSON format."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of the table and the panel behind it."""

    id: str
    row: Row
    colour: str
    """Variable of the page's style."""
    score: str
    unit: str
    whisker: tuple[float, float, float] | None
    """Low end, mean and high end of the interval, in shares of the table's axis."""
    cells: tuple[Cell, ...]
    runs: tuple[Run, ...]
    again: str
    published: tuple[str, ...]
    """What others found, and in what their settings differ."""
    costs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A table and all that goes with it."""

    id: str
    title: str
    table: Table
    unit: str
    """What follows the name of the metric."""
    chance: str
    chance_at: float | None
    """Chance in shares of the axis of the whiskers."""
    columns: tuple[Column, ...]
    rows: tuple[Line, ...]
    parts: tuple[tuple[str, ...], ...]
    """Scores of the parts of the test, the first line being the head; empty where there are none."""
    boards: tuple[tuple[Board, tuple[tuple[str, str, tuple[tuple[Entry, str, str], ...]], ...]], ...]
    """Board, and of each of its blocks the name, the budget, and the entries with score and what was spent."""
    comparisons: tuple[tuple[Comparison, str], ...]
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    of_boards: tuple[str, ...]
    literature: tuple[str, ...]


def sections(tables: Sequence[Table], style: Style, runs: Runs, machines: Mapping[str, str]) -> list[Section]:
    """All tables as sections, each with an id and a title of its own."""
    used: set[str] = set()
    return [
        _section(table, title, _id(table.task["name"], used), style, runs, machines)
        for table, title in zip(tables, titles(tables), strict=True)
    ]


def _section(table: Table, title: str, id: str, style: Style, runs: Runs, machines: Mapping[str, str]) -> Section:
    compared = beside(table)
    heads = columns(table, compared)
    ends = _axis(table)
    used: set[str] = set()
    published = {row.label: row for row in compared.rows} if compared else {}
    rows = tuple(
        _line(
            row,
            table,
            _id(f"{id}--{row.label}", used),
            NAMES[style.colours[row.attention]],
            runs,
            cells(row, table, heads, published.get(row.label), machines),
            tuple(difference_lines(compared, published[row.label])) if compared and row.label in published else (),
            ends,
        )
        for row in table.rows
    )
    pairs = table.ranking.comparisons if len(table.ranking.comparisons) <= _LISTED_PAIRS else ()
    return Section(
        id=id,
        title=title,
        table=table,
        unit=unit(table),
        chance="not recorded" if table.chance is None else figure(table.chance, table) + unit(table, " %"),
        chance_at=None if table.chance is None else _share(table.chance, ends),
        columns=heads,
        rows=rows,
        parts=_parts(table),
        boards=tuple(_board(board, table, machines) for board in (*table.boards.values(), *table.at)),
        comparisons=tuple((pair, estimated(pair.difference, table, "+")) for pair in pairs),
        facts=_facts(table),
        notes=tuple(_notes(table)),
        of_boards=tuple(budget_notes(table)[1:]),
        literature=tuple(_literature(table, compared)),
    )


def _line(
    row: Row,
    table: Table,
    id: str,
    colour: str,
    runs: Runs,
    held: tuple[Cell, ...],
    published: tuple[str, ...],
    ends: tuple[float, float],
) -> Line:
    spread = row.score.half_width or 0.0 if row.score else 0.0
    return Line(
        id=id,
        row=row,
        colour=colour,
        score=score(row, table),
        unit=unit(table, " %"),
        whisker=None
        if row.score is None
        else (_share(row.score.mean - spread, ends), _share(row.score.mean, ends), _share(row.score.mean + spread, ends)),
        cells=held,
        runs=tuple(runs.lines(row, table)),
        again=runs.again(row) if row.files else "",
        published=published,
        costs=_costs(row),
    )


def _axis(table: Table) -> tuple[float, float]:
    """Ends of the axis of all intervals: those of the scores and of chance, shares within 0 and 1."""
    ends = [] if table.chance is None else [table.chance]
    for row in table.rows:
        if row.score:
            spread = row.score.half_width or 0.0
            ends += [row.score.mean - spread, row.score.mean + spread]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    return (max(low, 0.0), min(high, 1.0)) if unit(table) else (low, high)


def _share(value: float, ends: tuple[float, float]) -> float:
    low, high = ends
    return 0.5 if high <= low else max(0.0, min(1.0, (value - low) / (high - low)))


def _costs(row: Row) -> tuple[tuple[str, str], ...]:
    span = row.train_seconds_range
    known = [
        ("parameters", f"{row.parameters:,}" if row.parameters is not None else ""),
        ("FLOPs of a forward pass, an example", f"{row.flops_per_example:,}" if row.flops_per_example is not None else ""),
        (
            "FLOPs of a training pass, an example" + ("" if row.training_flops_counted else " (taken as three forward passes)"),
            f"{row.training_flops_per_example:,.0f}" if row.training_flops_per_example is not None else "",
        ),
        (
            "training time, median over seeds",
            "" if row.train_seconds is None else f"{seconds(row.train_seconds)} s"
            + (f" ({seconds(span[0])} to {seconds(span[1])} s)" if span and len(row.seeds) > 1 else ""),
        ),
        ("examples a second in training", f"{row.examples_per_second:,.0f}" if row.examples_per_second is not None else ""),
        ("peak memory of a training step", mebibytes(row.peak_bytes) if row.peak_bytes is not None else ""),
    ]  # fmt: skip
    return tuple((name, value or "not measured") for name, value in known)


def _parts(table: Table) -> tuple[tuple[str, ...], ...]:
    names = list(dict.fromkeys(part for row in table.rows for part in row.parts))
    if not names:
        return ()
    body = [(row.label, *(estimated(row.parts.get(part), table) for part in names)) for row in table.rows]
    return (("attention", *names), *body)


_SPENT = {"time": lambda value: f"{seconds(value)} s", "FLOPs": lambda value: f"{short(value)}FLOPs", "memory": mebibytes}


def _board(
    board: Board, table: Table, machines: Mapping[str, str]
) -> tuple[Board, tuple[tuple[str, str, tuple[tuple[Entry, str, str], ...]], ...]]:
    said = _SPENT[board.cost]
    blocks = []
    for block in dict.fromkeys(entry.block for entry in board.entries):
        entries = [(e, estimated(e.score, table), optional(e.spent, said)) for e in board.entries if e.block == block]
        name = block if len(machines) > 1 else block.split(",")[0]
        blocks.append((name, optional(board.budgets.get(block), said), tuple(entries)))
    return board, tuple(blocks)


def _facts(table: Table) -> tuple[tuple[str, str], ...]:
    task, model, budget = table.task, table.model, table.budget
    dials: Mapping[str, Any] = table.task_options
    backbone = f" {model['backbone']}," if model.get("backbone") else ""
    rate, decay = (budget[name] for name in ("learning_rate", "weight_decay"))
    rates = f"learning rate {_plain(rate)}, weight decay {_plain(decay)}, warm-up {budget['warmup_steps']}"
    return (
        ("what is asked", str(task.get("summary", "-"))),
        ("data", f"{table.data_title}; licence: {task.get('licence', '-')}"),
        ("source", str(task.get("source", "-"))),
        ("task options", ", ".join(f"{key}={value}" for key, value in dials.items()) or "-"),
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


def _notes(table: Table) -> list[str]:
    notes = [table.ranking.reason] if table.ranking.reason else []
    notes += _grouped([(row.label, warning) for row in table.rows for warning in row.warnings])
    notes += _grouped([(row.label, row.unranked) for row in table.rows if row.unranked])
    if len({row.seeds for row in table.rows if row.score}) > 1:
        notes.append("rows differ in their seeds; compare them with care")
    notes += tuning_notes(table.rows, lambda value: f"{figure(value, table)}{unit(table, ' %')}")
    return notes


def _literature(table: Table, compared: Beside | None) -> list[str]:
    """Where the published figures are from, what is wrong with them, and which of their orderings our records bear out."""
    if compared is None:
        return []
    verdicts = [verdict_line(verdict, table.task["metric"]) for verdict in compared.verdicts]
    said = [f"{source.title}: {source.cite}; {source.hardware}" for source in compared.sources]
    said += [f"{title}, known flaws: {'; '.join(flaws)}" for title, flaws in compared.flaws.items() if flaws]
    return [*verdicts, *([f"Orderings are {RULE}."] if verdicts else []), *said]


def _grouped(said: Sequence[tuple[str, str]]) -> list[str]:
    about: dict[str, list[str]] = {}
    for label, text in said:
        about.setdefault(text, []).append(label)
    return [f"{', '.join(labels)}: {text}" for text, labels in about.items()]


def _id(text: str, used: set[str]) -> str:
    """A word for an address, unlike those used."""
    plain = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-") or "row"
    found, number = plain, 2
    while found in used:
        found, number = f"{plain}-{number}", number + 1
    used.add(found)
    return found
