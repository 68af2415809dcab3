"""Verdicts on which tasks separate mechanisms, as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.data import csv_text, plain
from attn_zoo.leaderboard.heatmap import titles as titles_of
from attn_zoo.leaderboard.metrics import estimated, unit
from attn_zoo.leaderboard.notes import COLUMNS_PAGE
from attn_zoo.leaderboard.separation import Separation
from attn_zoo.leaderboard.text import Grid, lines, tabulated

_NAMED = 6
"""Greatest number of left-out rows that a note names. If there are more, the note has only their number."""


def render_separations(found: Sequence[Separation], format: str) -> str:
    """Return text in one of ``FORMATS`` that states which tasks separate mechanisms.

    The table has one line per task. Notes below the table state the reasons, and how many pairs of rows differ significantly over
    all tasks.
    """
    if format == "json":
        return json.dumps([_data(one) for one in found], indent=1)
    if format == "csv":
        return csv_text(list(_data(found[0])), map(_data, found))
    titles = titles_of([one.table for one in found])
    head = ["task", "rows", "seeds", "pairs that differ", "groups", "over control", "separates"]
    body = [_cells(title, one) for title, one in zip(titles, found, strict=True)]
    table = tabulated(Grid("Separation", head, body), format)
    return f"{table}\n\n{lines(_notes(titles, found), format)}"


def _cells(title: str, one: Separation) -> list[str]:
    share = f"{100 * one.differing / one.pairs:.0f} %" if one.pairs else "-"
    margin = estimated(one.margin, one.table, "+") + (unit(one.table, " %") if one.margin else "")
    return [title, str(len(one.rows)), str(one.seeds), share, str(len(one.groups)), margin, "yes" if one.separates else "no"]


def _notes(titles: Sequence[str], found: Sequence[Separation]) -> list[str]:
    differing, pairs = sum(one.differing for one in found), sum(one.pairs for one in found)
    share = f" ({100 * differing / pairs:.0f} %)" if pairs else ""
    whole = (
        f"all tasks: {sum(one.separates for one in found)} of {len(found)} separate mechanisms, and {differing:,} of {pairs:,} "
        f"pairs of rows differ significantly{share}"
    )
    named = list(zip(titles, found, strict=True))
    against = grouped(("; ".join(one.reasons), title) for title, one in named if not one.separates)
    notes = [
        f"{', '.join(tasks[:-1])}{' and ' * (len(tasks) > 1)}{tasks[-1]} do{'es' * (len(tasks) == 1)} not separate mechanisms: "
        f"{why}"
        for why, tasks in against.items()
    ]
    out = [(title, ", ".join(one.left_out) if len(one.left_out) <= _NAMED else f"{len(one.left_out)} rows") for title, one in named]
    notes += [f"{title} leaves out {rows}, because seeds failed or are too few" for title, rows in out if rows]
    return [f"{whole}; columns and statistics: {COLUMNS_PAGE}", *notes]


def _data(one: Separation) -> dict[str, Any]:
    task = one.table.task
    known = {"task": task["name"], "task_options": dict(one.table.task_options), "metric": task["metric"]}
    return known | {field.name: plain(getattr(one, field.name)) for field in fields(one) if field.name != "table"}
