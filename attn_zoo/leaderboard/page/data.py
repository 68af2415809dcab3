"""Data of the HTML page as plain text and numbers: rows with details and runs, the heat map, and facts about the tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from attn_zoo.leaderboard.columns import Column, columns
from attn_zoo.leaderboard.heatmap import NOT_RUN, Cell, HeatMap, about, gap
from attn_zoo.leaderboard.heatmap import Column as HeatColumn
from attn_zoo.leaderboard.literature import anchor_beside, anchor_line, literature, printed
from attn_zoo.leaderboard.metrics import (
    beyond_sizes,
    digest_of,
    estimated,
    figure,
    is_share,
    mebibytes,
    optional,
    seconds,
    spent,
    training_length,
    unit,
)
from attn_zoo.leaderboard.reproduce import command
from attn_zoo.leaderboard.table import Row, Table
from attn_zoo.leaderboard.text import LEFT, table_notes
from attn_zoo.records import RunRecord

_PER_RUN = ("started", "command", "commit", "dirty")
"""Fields of an environment that differ from run to run."""
_ELSEWHERE = ("attention", "mean")
"""Columns that are left out: the page writes the mechanism in its own way, and the mean repeats the score."""
_BEYOND = 1e300
"""Number that replaces infinity as a sort key, because JSON has no infinity."""
_VIEWS = {"scores", "costs"}
"""Views whose columns are shown at first; the reader selects others."""


def _run(record: RunRecord, table: Table, numbers: dict[str, int]) -> list[Any]:
    """Return what the page shows about one run: seed, status, scores, seconds, memory, digest of the test data, number of the
    environment, commit, start and file. A new environment is added to ``numbers``."""
    scores = [optional(record.scores.get(name), lambda value: figure(value, table)) for name in ("test", "valid", "train")]
    where, changed = record.environment, " changed" * bool(record.environment.get("dirty"))
    kept = {name: value for name, value in sorted(where.items()) if name not in _PER_RUN and value is not None}
    environment = ", ".join(f"{name}={value}" for name, value in kept.items())
    return [
        record.spec.seed,
        record.status.replace("_", " "),
        *scores,
        optional(record.measured.get("train_seconds"), seconds),
        optional(record.measured.get("peak_bytes"), mebibytes),
        str(record.data.get("test", {}).get("digest", "-"))[:8],
        numbers.setdefault(environment, len(numbers) + 1),
        str(where.get("commit") or "-")[:8] + changed,
        str(where.get("started") or "-").replace("T", " ").replace("+00:00", " UTC"),
        record.source or "",
    ]


def rows_data(
    sets: Sequence[tuple[str, HeatMap]], pages: Mapping[str, str], numbers: dict[str, int]
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the columns and the lines of the page's table of all rows.

    Args:
        sets: name and heat map of each set of results.
        pages: addresses of the site's pages, with keys ``attention/NAME`` and ``task/NAME``.
        numbers: mapping to which the number of each environment (machine and software) is added, counted from 1.
    """
    known: dict[str, tuple[Column, set[str]]] = {}
    rows: list[Mapping[str, Any]] = []
    for name, task in ((name, task) for name, found in sets for task in found.columns):
        table = task.table
        own = [column for column in columns(table) if column.text and column.shown(table) and column.name not in _ELSEWHERE]
        for column in own:
            known.setdefault(column.name, (column, set()))[1].add(column.head(table))
        published = literature(table)
        for row in table.rows:
            cells = {column.name: _cell(column, row, table) for column in own}
            theirs = [each for each in published if each.row is row]
            said, lines = None, list(map(str, theirs))
            if figures := [figure for each in theirs for figure in each.figures]:
                said = [printed(figures), max(figure.value for figure in figures)]
            if beside := anchor_beside(row.attention, table.task):
                lines.append(anchor_line(beside))
                if beside.figure and not said:
                    said = [f"{beside.figure.printed} {beside.figure.unit} ({beside.task})", None]
            entries = [("mechanism", f"attention/{row.attention}"), ("task", f"task/{table.task['name']}")]
            rows.append(
                {
                    "set": name,
                    "task": task.title,
                    "attention": row.label,
                    "mechanism": row.attention,
                    "control": row.control,
                    "group": str(row.block),
                    "metric": task.metric,
                    **cells,
                    **({"published": said} if said else {}),
                    "details": [*_details(row, table), *(["published", line] for line in lines)],
                    "runs": [_run(record, table, numbers) for record in row.runs],
                    "pages": [[what, pages[entry]] for what, entry in entries if entry in pages],
                }
            )
    heads = [_head(column, names) for column, names in known.values()]
    note = "published score of the same mechanism, in the settings of its source; in brackets the task, if it is another one"
    heads += [_head(Column("published", note=note), {"published (%)"})]
    return [head for head in heads if any(head["field"] in row for row in rows)], rows


def _head(column: Column, names: set[str]) -> Mapping[str, Any]:
    shown = not column.views or bool(set(column.views) & _VIEWS)
    return {
        "field": column.name,
        "title": names.copy().pop() if len(names) == 1 else column.name.replace("_", " "),
        "note": column.note,
        "shown": shown,
        "first": "asc" if column.least_first else "desc",
        "measured": column.measured,
        "align": "left" if column.name.replace("_", " ") in LEFT else "right",
    }


def _cell(column: Column, row: Row, table: Table) -> list[Any]:
    """Return the text of a cell, the number by which it is sorted, and the tooltip if there is one."""
    value, tip = column.sorted_by(row, table), column.tip(row, table)
    turned = -value if value is not None and column.name == "score" and not table.higher_is_better else value
    if turned is not None and math.isinf(turned):
        turned = math.copysign(_BEYOND, turned)
    return [column.written(row, table), turned, *([tip] if tip else [])]


def _details(row: Row, table: Table) -> list[list[str]]:
    """Return what is known about a row beyond its columns, as pairs of a name and a text."""
    derived = "" if row.training_flops_counted else " (taken as three forward passes)"
    card = row.card
    told = [
        ("result", about(row, table)),
        *(("failure", str(failure)) for failure in row.failures),
        *(("warning", warning) for warning in row.warnings),
        ("no verdict", row.unjudged),
        ("dominated by", ", ".join(row.dominated_by)),
        ("options", ", ".join(f"{k}={v}" for k, v in [*row.options.items(), ("implementation", row.implementation)])),
        ("parameters", optional(row.parameters, "{:,}".format)),
        ("FLOPs of a forward pass, per example", optional(row.flops_per_example, "{:,}".format)),
        (f"FLOPs of training, per example{derived}", optional(row.training_flops_per_example, "{:,.0f}".format)),
        ("card", "; ".join(str(card[key]) for key in ("title", "paper", "equation", "time", "memory", "origin") if card.get(key))),
        ("card version", str(card["version"])),
        ("run it again", command(row.runs[0].spec, [record.spec.seed for record in row.runs])),
        ("recorded by", "; ".join(row.noted("command"))),
    ]
    return [[name, text] for name, text in told if text]


def heat_data(found: HeatMap) -> Mapping[str, Any]:
    """Return the heat map as plain data: its columns and its lines. Each cell of a line has text, small text, shade, marks, tooltip
    and the label of its row."""

    def cell(cell: Cell, column: HeatColumn) -> list[Any]:
        marks = {"leads": cell.leads, "marked": cell.marked, "untrained": not cell.trained}
        marks["failed"] = gap(cell) not in ("", NOT_RUN)
        kinds = " ".join(name for name, holds in marks.items() if holds)
        said, name = ("", "") if cell.row is None else (about(cell.row, column.table, f" on {column.title}"), cell.row.label)
        return [gap(cell) or cell.text, cell.small, cell.level, kinds, said, name]

    share = next((column.table for column in found.columns if is_share(column.table)), None)
    averages = share is not None and found.means.reason is None
    lines = [
        {
            "attention": line.attention,
            "control": line.control,
            "group": line.group,
            "cells": [cell(own, column) for own, column in zip(line.cells, found.columns, strict=True)],
            "beside": [
                *([estimated(line.average, share)] if share and averages else []),
                *([line.flops or "-"] if found.flops else []),
            ],
        }
        for line in found.lines
    ]
    return {
        "columns": [
            {"title": c.title, "heading": c.heading, "direction": c.direction, "metric": c.metric, "why": c.unshaded or ""}
            for c in found.columns
        ],
        "beside": [*(["average (%)"] if averages else []), *([found.flops.head] if found.flops else [])],
        "chance": [c.chance for c in found.columns],
        "lines": lines,
    }


def facts_data(found: HeatMap) -> list[Mapping[str, Any]]:
    """Return facts about each task: its data, network, budget, and the notes below its table."""
    made: list[Mapping[str, Any]] = []
    for column in found.columns:
        table = column.table
        task, model, budget, boards = table.task, table.model, table.budget, (*table.boards.values(), *table.at)
        rates = ", ".join(f"{name.replace('_', ' ')} {budget[name]}" for name in ("learning_rate", "weight_decay", "warmup_steps"))
        backbone = f"{model['backbone']}, " if model.get("backbone") else ""
        facts = [
            ("what is asked", task.get("summary", "-")),
            ("positions", task["length"]),
            ("chance", "-" if table.chance is None else figure(table.chance, table) + unit(table, " %")),
            ("best control", table.control or "-"),
            ("source and licence", f"{task.get('source', '-')}; {task.get('licence', '-')}"),
            ("network", f"{backbone}width {model['dim']}, depth {model['depth']}, {model['heads']} heads{beyond_sizes(model)}"),
            ("budget", f"{training_length(budget)}; {rates}"),
            ("task version", task["version"]),
            *(
                (f"{split} split", f"{d.get('examples', 0):,} examples, {digest_of(d, 'SHA-256')}")
                for split, d in table.data.items()
            ),
            *((f"equal {board.cost}", f"{spent(board.cost, board.budget)} ({board.rule})") for board in boards),
            *(("note", note) for note in table_notes(table)),
        ]
        made.append({"title": column.title, "facts": [[name, str(text)] for name, text in facts]})
    return made


def summary(tables: Sequence[Table], records: Sequence[RunRecord]) -> list[list[str]]:
    """Return pairs of a name and a text about the results of the page: runs, machines, protocols, dates and commits."""
    rows = [row for table in tables for row in table.rows]
    shown = [record for row in rows for record in row.runs]
    statuses = Counter(record.status.replace("_", " ") for record in shown if record.status != "done")
    started = sorted(str(record.environment["started"])[:10] for record in shown if record.environment.get("started"))
    left = len(records) - len(shown)
    runs = [str(len(shown)), *(f"{count} {status}" for status, count in statuses.items())]
    runs += [f"{left} more are not shown or were run again later"] if left else []
    commits = sorted({commit[:8] for row in rows for commit in row.noted("commit")})
    return [
        ["runs", ", ".join(runs)],
        ["machines", "; ".join(sorted({machine for row in rows for machine in row.block.machines}))],
        ["protocol", ", ".join(sorted({table.protocol for table in tables}))],
        ["recorded", " to ".join(sorted({*started[:1], *started[-1:]})) or "-"],
        ["commits", ", ".join(commits) or "-"],
    ]
