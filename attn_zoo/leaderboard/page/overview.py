"""The top of the page: what is compared, and the heat map of all scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.leaderboard.heatmap import HeatMap, Line, about, beside, gap, level, mean
from attn_zoo.leaderboard.metrics import estimated, is_share
from attn_zoo.leaderboard.page.inline import NAMES
from attn_zoo.leaderboard.page.sections import Section
from attn_zoo.leaderboard.plots.style import Style
from attn_zoo.leaderboard.table import Table
from attn_zoo.records import RunRecord
from attn_zoo.records.plain import writable


@dataclass(frozen=True, slots=True)
class HeatCell:
    """Cell of the page's heat map, as text."""

    address: str
    """Address of the row's details on this page; empty where nothing was run."""
    mean: str
    """Mean score; empty where there is none."""
    spread: str
    gap: str
    """Reason why there is no score."""
    said: str
    """Text of the tooltip."""
    kind: str
    """CSS classes: the level of shade, and whether the cell leads, is the best control, or failed."""


@dataclass(frozen=True, slots=True)
class HeatLine:
    """Line of the page's heat map, as text."""

    attention: str
    control: bool
    colour: str
    implementations: str
    """Implementations of its cells, with spaces between."""
    cells: tuple[HeatCell, ...]
    average: str
    """Average over tasks; ``-`` where the line has none, see ``heatmap.model.Line``."""
    costs: tuple[str, ...]


def summary(tables: Sequence[Table], records: Sequence[RunRecord]) -> dict[str, Any]:
    """Numbers of attentions, tasks, runs and seeds, with the machines, protocols, dates and commits behind them."""
    files = {file for table in tables for row in table.rows for file in row.files}
    shown = [record for record in records if writable(record.source) in files]
    rows = [row for table in tables for row in table.rows]
    counts = sorted({len(row.seeds) for row in rows if row.test})
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
        "machines": sorted({machine for row in rows for machine in row.block.machines}),
        "protocols": sorted({table.protocol for table in tables}),
        "dates": sorted({*started[:1], *started[-1:]}),
        "commits": sorted({commit[:8] for row in rows for commit in row.commits}),
    }


def overview(found: HeatMap, made: Sequence[Section], style: Style) -> list[HeatLine]:
    """The lines of the heat map, each cell with the address of its row."""
    addresses = {(at, line.row.label): line.id for at, section in enumerate(made) for line in section.rows}
    share = next((column.table for column in found.columns if is_share(column.table)), None)

    def linked(line: Line, at: int) -> HeatCell:
        cell, column = line.cells[at], found.columns[at]
        failed = cell.row is not None and cell.row.test is None
        kinds = [] if cell.shade is None else [f"h{level(cell.shade)}"]
        kinds += [name for name, holds in (("leads", cell.leads), ("marked", cell.marked), ("failed", failed)) if holds]
        return HeatCell(
            address="" if cell.row is None else addresses[at, cell.row.label],
            mean=mean(cell, column.table),
            spread=beside(cell, column.table),
            gap=gap(cell),
            said="" if cell.row is None else about(cell.row, column.table, f" on {column.title}"),
            kind=" ".join(kinds),
        )

    return [
        HeatLine(
            attention=line.attention,
            control=line.control,
            colour=NAMES[style.colours[line.attention]],
            implementations=" ".join(sorted({cell.row.implementation for cell in line.cells if cell.row})),
            cells=tuple(linked(line, at) for at in range(len(found.columns))),
            average="-" if share is None else estimated(line.average, share),
            costs=line.costs,
        )
        for line in found.lines
    ]


def attentions(tables: Sequence[Table], style: Style) -> list[tuple[str, str, bool]]:
    """Name, colour, and whether it is a control, of every attention: contenders first."""
    known = {row.attention: row.control for table in tables for row in table.rows}
    return [(name, NAMES[style.colours[name]], known[name]) for name in sorted(known, key=lambda name: (known[name], name))]
