"""Leaderboard tables as data: CSV and JSON with every field."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
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
        rows = [{column.name: column.figure(row, table) for column in columns(table)} for row in table.rows]
        facts = {field.name: getattr(table, field.name) for field in fields(table) if field.name not in ("rows", "boards", "at")}
        rules = {board.cost: board.rule for board in table.boards.values()}
        made.append(facts | {"data_title": table.data_title, "budget_rules": rules, "rows": rows})
    return json.dumps(_plain(made), indent=1, sort_keys=True)


def as_csv(tables: Sequence[Table]) -> str:
    """Return tables as CSV with one line per row. An estimate takes two columns (mean, half width); `` | `` separates items of a
    list, and lists of other values and mappings become JSON text.
    """
    lines, names = [], dict[str, dict[str, None]]()
    for table, row in ((of, row) for of in tables for row in of.rows):
        values = _facts(table) | {column.name: column.figure(row, table) for column in columns(table)}
        cells = {name: {} if value is None else _cells(name, value) for name, value in values.items()}
        for name, own in cells.items():
            names.setdefault(name, {}).update(dict.fromkeys(own))
        lines.append({part: value for own in cells.values() for part, value in own.items()})
    head = [part for name, parts in names.items() for part in parts or [name]] or [*COLUMNS]
    out = io.StringIO()
    writer = csv.DictWriter(out, head, lineterminator="\n")
    writer.writerow({name: csv_cell(name) for name in head})
    for line in lines:
        writer.writerow({n: csv_cell(json.dumps(v) if isinstance(v, list | dict) else v) for n, v in line.items()})
    return out.getvalue()


def _facts(table: Table) -> dict[str, Any]:
    """Return the facts of a table that each of its CSV lines repeats."""
    return {
        "task": table.task["name"],
        "task_version": table.task["version"],
        "task_options": table.task_options,
        "metric": table.task["metric"],
        "higher_is_better": table.higher_is_better,
        "data": table.data_title,
        **{name: getattr(table, name) for name in ("protocol", "precision", "device", "chance")},
        "best_control": table.control,
        "best_control_score": table.best_control,
        "no_verdicts": table.judgement.reason,
    }


def _cells(name: str, value: Any) -> dict[str, Any]:
    """Return the value of a column as CSV cells by heading."""
    if isinstance(value, Estimate):
        return {f"{name}_mean": value.mean, f"{name}_half_width_95": value.half_width}
    if isinstance(value, Within):
        score = {} if value.score is None else _cells(name, value.score)
        return {f"{name}_budget": value.budget, f"{name}_note": value.note, **score}
    listed = isinstance(value, tuple) and all(isinstance(item, str | int | float | Failure) for item in value)
    return {name: " | ".join(map(str, value)) if listed else _plain(value)}


def _plain(value: Any) -> Any:
    """Return a value as data that JSON can hold. Failures and implementation groups become text; other dataclasses become
    mappings."""
    if isinstance(value, Failure | Block):
        return str(value)
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key) if isinstance(key, Block) else key: _plain(content) for key, content in value.items()}
    return [_plain(content) for content in value] if isinstance(value, list | tuple) else value
