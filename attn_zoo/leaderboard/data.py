"""Leaderboard tables as data: CSV and JSON with every field."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from attn_zoo.escapes import csv_cell
from attn_zoo.leaderboard.columns import COLUMNS, columns
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.leaderboard.table import Block, Failure, Table, Within


def as_json(tables: Sequence[Table]) -> str:
    """Return tables as JSON, with every field of each table and every column of each row."""
    made = []
    for table in tables:
        known = columns(table)
        rows = [{column.name: column.figure(row, table) for column in known} for row in table.rows]
        facts = {field.name: getattr(table, field.name) for field in fields(table) if field.name not in ("rows", "boards", "at")}
        rules = {board.cost: board.rule for board in table.boards.values()}
        made.append(facts | {"data_title": table.data_title, "budget_rules": rules, "rows": rows})
    return json.dumps(plain(made), indent=1, sort_keys=True)


def as_csv(tables: Sequence[Table]) -> str:
    """Return tables as CSV with one line per row. An estimate takes two columns (mean, half width); `` | `` separates items of a
    list.
    """
    cells: dict[str, list[dict[str, Any]]] = {}
    made = [(row, table, columns(table)) for table in tables for row in table.rows]
    for at, (row, table, known) in enumerate(made):
        values = {name: take(table) for name, take in _FACTS.items()} | {c.name: c.figure(row, table) for c in known}
        for name, value in values.items():
            cells.setdefault(name, [{} for _ in made])[at] = {} if value is None else _cells(name, value)
    names = [dict.fromkeys(part for line in column for part in line) or [name] for name, column in cells.items()]
    lines = [{part: value for column in cells.values() for part, value in column[at].items()} for at in range(len(made))]
    return csv_text([part for parts in names for part in parts] or [*_FACTS, *COLUMNS], lines)


def _cells(name: str, value: Any) -> dict[str, Any]:
    """Return the value of a column as CSV cells by heading."""
    if isinstance(value, Estimate):
        return {f"{name}_mean": value.mean, f"{name}_half_width_95": value.half_width}
    if isinstance(value, Within):
        score = {} if value.score is None else _cells(name, value.score)
        return {f"{name}_budget": value.budget, f"{name}_note": value.note, **score}
    listed = isinstance(value, tuple) and all(isinstance(item, str | int | float | Failure) for item in value)
    return {name: " | ".join(map(str, value)) if listed else plain(value)}


_FACTS: Mapping[str, Callable[[Table], Any]] = {
    "task": lambda table: table.task["name"],
    "task_version": lambda table: table.task["version"],
    "task_options": lambda table: table.task_options,
    "metric": lambda table: table.task["metric"],
    "higher_is_better": lambda table: table.higher_is_better,
    "data": lambda table: table.data_title,
    "protocol": lambda table: table.protocol,
    "precision": lambda table: table.precision,
    "device": lambda table: table.device,
    "chance": lambda table: table.chance,
    "best_control": lambda table: table.control,
    "best_control_score": lambda table: table.best_control,
    "no_verdicts": lambda table: table.judgement.reason,
}
"""Facts of a table that each of its CSV lines repeats."""


def csv_text(names: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> str:
    """Return CSV text with a header of ``names`` and one line per mapping in ``lines``. Lists and mappings become JSON text."""
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writerow({name: csv_cell(name) for name in names})
    written = ({n: json.dumps(v) if isinstance(v, list | dict) else v for n, v in line.items()} for line in lines)
    writer.writerows({name: csv_cell(value) for name, value in line.items()} for line in written)
    return out.getvalue()


def plain(value: Any) -> Any:
    """Return a value as data that JSON can hold. Failures and implementation groups become text; other dataclasses become
    mappings."""
    if isinstance(value, Failure | Block):
        return str(value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key) if isinstance(key, Block) else key: plain(content) for key, content in value.items()}
    return [plain(content) for content in value] if isinstance(value, list | tuple) else value
