"""Figures of every table that is made from committed records, by experiment, table, row and column.

A cell is addressed by what it means, not by where it is printed. Rewrites of tables and of their makers change this file, and must
leave ``tables.json.xz`` as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from committed import ROOT
from readme import tables as printed_tables

from attn_zoo.leaderboard import leaderboard

Cells = dict[str, Any]
"""Values by column."""
Golden = dict[str, dict[str, dict[str, Cells]]]
"""Cells by experiment, table and row."""

DECLARED = ("columns", "zoo", "tasks", "heirs_compression", "heirs_cost")
"""Generated tables of what cards and columns declare, without figures of records. Their text may be reworded."""
PROSE: tuple[str, ...] = ("bare", "equal_time", "figure3_pilot", "half_hour", "k_or_share", "late")
PROSE += ("limits", "lra_two_hours", "photographs", "rates", "settings", "starts")
"""Generated tables of which the figures in sentences are compared as well; the wording of all others is free."""
_LEFT_OUT = ("files", "commands", "commits", "card", "curve", "options", "label", "block", "tuning", "heads", "seeds", "machines")
"""Fields of a row that are names, or provenance, or points of a picture."""
_SETTING = ("budget", "model", "precision", "device", "protocol", "data", "task")
"""Fields by which tables of equal task and options differ, the plainest first."""
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")
_DIGEST = re.compile(r"\b[0-9a-f]{12,}\b")


def collect() -> Golden:
    """Return the figures of all leaderboards and of all generated tables of pages."""
    folders = sorted(path.name for path in (ROOT / "results").iterdir() if path.is_dir())
    boards = {f"results/{name}": dict(_boards(name)) for name in folders}
    pages = {name: text for name, text in printed_tables().items() if name not in DECLARED}
    return boards | {"pages": {name: dict(_printed(text, name in PROSE)) for name, text in pages.items()}}


def _boards(folder: str) -> Iterator[tuple[str, dict[str, Cells]]]:
    made = json.loads(leaderboard(ROOT / "results" / folder, format="json"))
    for table, title in zip(made, _titles(made), strict=True):
        rows = {row["label"]: _row(row) for row in table["rows"]}
        for row in table["rows"]:
            for cost in ("time", "FLOPs", "memory"):
                if within := row.get(f"equal_{cost}"):
                    rows[row["label"]] |= {f"equal {cost}, {name}": value for name, value in _flat(within)}
        rows["(table)"] = {name: table[name] for name in ("chance", "control", "best_control", "softmax_flops")}
        rows["(table)"] |= dict(_flat(_without(table["judgement"], "comparisons", "best")))
        for pair in table["judgement"]["comparisons"]:
            rows[f"{pair['row']} against {pair['against']}"] = dict(_flat(_without(pair, "row", "against")))
        yield title, {name: {column: _rounded(value) for column, value in cells.items()} for name, cells in rows.items()}


def _row(row: Mapping[str, Any]) -> Cells:
    cells = dict(_flat(_without(row, *_LEFT_OUT)))
    tuning, curve = row["tuning"], row["curve"]
    if tuning:
        cells |= {"trials": tuning["trials"], "best_valid_of_trials": tuning["best_valid"]}
    if curve:
        cells |= {"curve points": len(curve)} | {f"curve end, {name}": value for name, value in _flat(curve[-1])}
    return cells


def _titles(made: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each table: its task and options and, where these do not suffice, the settings in which it differs."""
    parts = [{"task": table["task"]["name"], **table["task_options"]} for table in made]
    for name in _SETTING:
        for at, own in enumerate(parts):
            alike = [other for other, part in enumerate(parts) if part == own]
            for key in (made[at][name] if isinstance(made[at][name], dict) else {name: None}) if len(alike) > 1 else ():
                values = [made[o][name].get(key) if isinstance(made[o][name], dict) else made[o][name] for o in alike]
                if any(value != values[0] for value in values):
                    for other, value in zip(alike, values, strict=True):
                        parts[other] = {**parts[other], f"{name} {key}": value}
    return [", ".join(f"{key}={value}" for key, value in part.items()) for part in parts]


def _printed(text: str, prose: bool) -> Iterator[tuple[str, Cells]]:
    """Yield the rows of Markdown tables and, if asked for, numbers in prose by their part of a sentence, with the heading above."""
    heading, head, rows = "", list[str](), list[list[str]]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if set("".join(cells)) <= set("-:"):
                head, rows = rows.pop(), []
            else:
                rows.append(cells)
            continue
        yield from _rows(heading, head, rows)
        head, rows = [], []
        if line.startswith(("#", "**")):
            heading = line.strip("#* ")
        for part in re.split(r"(?<=[.;:]) ", _DIGEST.sub("digest", line)) if prose else ():
            if numbers := _NUMBER.findall(part):
                yield f"{heading}: text: {_NUMBER.sub('#', part)}", {f"number {at}": n for at, n in enumerate(numbers, 1)}


def _rows(heading: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, Cells]]:
    start = int(bool(head) and head[0] == "rank")  # a rank is a figure, not the name of a row
    taken = set[str]()
    for row in rows:
        names = (f"{heading}: {', '.join(row[start:stop])}" for stop in range(start + 1, len(row) + 1))
        name = next((name for name in names if name not in taken), f"{heading}: {row}")
        taken.add(name)
        yield name, {column if head.count(column) == 1 else f"{column} ({at})": row[at] for at, column in enumerate(head)}


def _without(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in names}


def _flat(found: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name} ")
        else:
            yield f"{before}{name}", value


def _rounded(value: Any) -> Any:
    """Return a value with 8 digits; lists as text."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    return " | ".join(map(str, map(_rounded, value))) if isinstance(value, Iterable) and not isinstance(value, str) else value
