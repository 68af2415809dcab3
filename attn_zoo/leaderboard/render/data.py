"""Complete tables as data for other programs: CSV with a line for each row, JSON with every field."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from attn_zoo.escapes import csv_cell
from attn_zoo.leaderboard.rows import Block, Board, Failure, Row, Table
from attn_zoo.leaderboard.statistics import Estimate

_COSTS = ("time", "FLOPs", "memory")
_ESTIMATES = {"score": "score", "valid": "valid", "over_chance": "over_chance", "over_control": "margin", "train_gap": "train_gap"}
"""Stem of two column names, for the mean and its half width, and the field of a row that holds the estimate."""
_PLAIN = ["attention", "label", "implementation", "control", "rank", "ties", "unranked", "parameters", "flops_per_example"]
_PLAIN += ["training_flops_per_example", "training_flops_counted", "examples_per_second", "train_seconds", "peak_bytes", "block"]
_LISTS = ("seeds", "failures", "warnings", "dominated_by", "fronts", "machines", "files", "commands", "commits")
_NAMES = ["task", "task_version", "task_options", "metric", "higher_is_better", "data", "protocol", "precision", "device", *_PLAIN]
_NAMES += ["options", "heads", "score_by_seed", "seeds_done", "chance", "best_control", "best_control_score"]
_NAMES += [f"{name}_{part}" for name in _ESTIMATES for part in ("mean", "half_width_95")]
_NAMES += ["trials", "study", "tuned", "best_valid_of_trials", "train_seconds_least", "train_seconds_most", "no_ranks", *_LISTS]
_NAMES += [f"equal_{cost.lower()}_{part}" for cost in _COSTS for part in ("budget", "mean", "half_width_95", "note")]


def as_json(tables: Sequence[Table]) -> str:
    """JSON of every field of every table."""
    return json.dumps(plain(tables), indent=1, sort_keys=True)


def as_csv(tables: Sequence[Table]) -> str:
    """CSV with a line for every row; items of lists are divided by `` | ``, options and scores by seed are JSON."""
    return csv_text(_NAMES, (_line(row, table) for table in tables for row in table.rows))


def csv_text(names: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> str:
    """CSV of ``lines`` under the column names ``names``; lists and mappings are JSON."""
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    written = ({n: json.dumps(v) if isinstance(v, list | dict) else v for n, v in line.items()} for line in lines)
    writer.writerows({name: csv_cell(value) for name, value in line.items()} for line in written)
    return out.getvalue()


def plain(value: Any) -> Any:
    """Convert to plain data: rows become flat mappings, failures and blocks text."""
    if isinstance(value, Row):
        return plain(_flat(value))
    if isinstance(value, Failure | Block):
        return str(value)
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key) if isinstance(key, Block) else key: plain(content) for key, content in value.items()}
    return [plain(content) for content in value] if isinstance(value, list | tuple) else value


def _flat(row: Row) -> dict[str, Any]:
    """All figures and facts of a row by name."""
    parts = ("scores", "costs", "provenance", "standing")
    found = {field.name: getattr(row, field.name) for field in fields(row) if field.name not in ("setting", *parts)}
    for part in (getattr(row, name) for name in parts):
        found |= {field.name: getattr(part, field.name) for field in fields(part)}
    found["score"] = found.pop("test")
    found["label"] = row.label
    block = row.costs.block
    return found | {"seeds": row.scores.seeds, "machines": block.machines, "measured_as": block.measured_as}


def _line(row: Row, table: Table) -> dict[str, Any]:
    known, tuning = _flat(row), row.provenance.tuning
    least, most = row.costs.train_seconds_range or (None, None)
    line: dict[str, Any] = {name: known[name] for name in _PLAIN}
    line |= {name: " | ".join(map(str, known[name])) for name in _LISTS}
    line |= {
        "task": table.task["name"],
        "task_version": table.task["version"],
        "task_options": dict(table.task_options),
        "metric": table.task["metric"],
        "higher_is_better": table.higher_is_better,
        "data": table.data_title,
        "protocol": table.protocol,
        "precision": table.precision,
        "device": table.device,
        "options": dict(row.options),
        "heads": row.heads,
        "score_by_seed": dict(row.scores.by_seed),
        "seeds_done": len(row.scores.seeds),
        "chance": table.chance,
        "best_control": table.control,
        "best_control_score": table.best_control,
        "trials": row.provenance.trials,
        "study": tuning and tuning.study,
        "tuned": dict(row.provenance.tuned),
        "best_valid_of_trials": tuning and tuning.best_valid,
        "train_seconds_least": least,
        "train_seconds_most": most,
        "no_ranks": table.ranking.reason,
    }
    for name, field in _ESTIMATES.items():
        line |= _estimate(name, known[field])
    for cost in _COSTS:
        line |= _budget(f"equal_{cost.lower()}", row, table.boards.get(cost))
    return line


def _estimate(name: str, found: Estimate | None) -> dict[str, float | None]:
    return {f"{name}_mean": found.mean if found else None, f"{name}_half_width_95": found.half_width if found else None}


def _budget(name: str, row: Row, board: Board | None) -> dict[str, Any]:
    entry = next((entry for entry in board.entries if entry.label == row.label), None) if board else None
    known = {f"{name}_budget": board.budgets.get(row.costs.block) if board else None, f"{name}_note": entry.note if entry else None}
    return known | _estimate(name, entry.score if entry else None)
