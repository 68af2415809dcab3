"""The top of the page: what is compared, and one table of all scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.leaderboard.averages import Averages
from attn_zoo.leaderboard.heatmap.shades import shades
from attn_zoo.leaderboard.page.inline import NAMES
from attn_zoo.leaderboard.page.sections import Section
from attn_zoo.leaderboard.plots.style import Style
from attn_zoo.leaderboard.render.text import estimated, score
from attn_zoo.leaderboard.rows import Row, Table
from attn_zoo.records import RunRecord


@dataclass(frozen=True, slots=True)
class Heat:
    """A cell of the overview."""

    text: str
    address: str
    """Of the row's details on this page."""
    share: float | None
    """Where the score lies between the table's best control and its best mechanism; None where nothing is shaded."""
    failed: bool


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the overview."""

    row: Row
    colour: str
    cells: tuple[Heat | None, ...]
    """By task; None where the row has no record."""
    average: str
    """Over tasks; ``-`` where it would be one over other cells than that of other rows."""


def summary(tables: Sequence[Table], records: Sequence[RunRecord]) -> dict[str, Any]:
    """What is compared, on which machines, with how many seeds, under which protocol."""
    files = {file for table in tables for row in table.rows for file in row.files}
    shown = [record for record in records if record.source in files]
    rows = [row for table in tables for row in table.rows]
    counts = sorted({len(row.seeds) for row in rows if row.score})
    started = sorted(str(record.environment["started"])[:10] for record in shown if record.environment.get("started"))
    return {
        "attentions": len({row.attention for row in rows if not row.control}),
        "controls": len({row.attention for row in rows if row.control}),
        "tasks": len({table.task["name"] for table in tables}),
        "tables": len(tables),
        "runs": len(shown),
        "statuses": Counter(record.status.replace("_", " ") for record in shown if record.status != "done"),
        "superseded": len(records) - len(shown),
        "seeds": "no" if not counts else str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}",
        "machines": sorted({machine for row in rows for machine in row.machines}),
        "protocols": sorted({table.protocol for table in tables}),
        "dates": sorted({*started[:1], *started[-1:]}),
        "commits": sorted({commit[:8] for row in rows for commit in row.commits}),
    }


def overview(tables: Sequence[Table], made: Sequence[Section], style: Style, means: Averages) -> list[Line]:
    """Attentions by tasks: contenders by their mean place over the tasks they have, then controls likewise."""
    first: dict[str, Row] = {}
    places: dict[str, list[float]] = {}
    cells: dict[tuple[str, int], Heat] = {}
    for number, (table, section) in enumerate(zip(tables, made, strict=True)):
        known = shades(table, table.rows)
        for place, (row, line) in enumerate(zip(table.rows, section.rows, strict=True)):
            first.setdefault(row.label, row)
            places.setdefault(row.label, []).append(place / len(table.rows))
            cells[row.label, number] = Heat(score(row, table), line.id, known.get(row.label), row.score is None)
    order = sorted(first, key=lambda label: (first[label].control, sum(places[label]) / len(places[label]), label))
    shares = next((table for table in tables if table.task["title"] in means.tasks), tables[0]) if tables else None
    return [
        Line(
            row=first[label],
            colour=NAMES[style.colours[first[label].attention]],
            cells=tuple(cells.get((label, at)) for at in range(len(tables))),
            average=estimated(means.rows.get(label), shares) if shares else "-",
        )
        for label in order
    ]


def attentions(tables: Sequence[Table], style: Style) -> list[tuple[str, str, bool]]:
    """Name, colour, and whether it is a control, of every attention: contenders first."""
    known = {row.attention: row.control for table in tables for row in table.rows}
    return [(name, NAMES[style.colours[name]], known[name]) for name in sorted(known, key=lambda name: (known[name], name))]
