"""Words and figures of the heat map, the same in the picture, the page and the terminal."""

from __future__ import annotations

from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.heatmap.model import Cell, Column, HeatMap, Line
from attn_zoo.leaderboard.metrics import estimated, is_share, is_significant, unit
from attn_zoo.leaderboard.notes import seed_count
from attn_zoo.leaderboard.table import Row, Table

_SHORT = {"out_of_memory": "OOM", "timed_out": "time-out"}
"""Abbreviations of statuses."""


def mean(cell: Cell, table: Table, places: int = 1) -> str:
    """A cell's mean score: shares in per cent with ``places`` decimals, others with about three digits; empty without a score."""
    if cell.row is None or cell.row.test is None:
        return ""
    return brief(cell.row.test.mean, table, places)


def brief(value: float, table: Table, places: int = 1) -> str:
    """Format a score as short as possible: ``97.5``, ``8.1``, ``0.0021``."""
    if is_share(table):
        return f"{100 * value:.{places}f}"
    if is_significant(table.task["metric"]):
        return f"{value:.{places + 1}g}"
    return f"{value:.{max(0, min(places, 3 - len(f'{abs(value):.0f}')))}f}"


def spread(cell: Cell, table: Table) -> str:
    """``±`` half of the interval, or ``2/3`` where only two of three seeds have a score; empty where neither is known."""
    row = cell.row
    if row is None or row.test is None:
        return ""
    if row.failures:
        return f"{len(row.seeds)}/{row.attempts}"
    half = row.test.half_width
    if half is None:
        return ""
    if is_significant(table.task["metric"]):
        return f"±{half:.1g}"
    shown = 100 * half if is_share(table) else half
    return f"±{shown:.1f}" if shown < 9.95 else f"±{shown:.0f}"


def gap(cell: Cell, table: Table) -> str:
    """Reason why a cell has no score: ``refused``, ``OOM``, ``diverged``; a dot where nothing was run. Empty where it has one."""
    if cell.row is None:
        return "·"
    if cell.row.test is not None:
        return ""
    failures = cell.row.failures
    return _SHORT.get(failures[0].status, failures[0].word) if failures else "-"


def told(line: Line, cell: Cell, column: Column) -> str:
    """Description of a cell, for its tooltip."""
    if cell.row is None:
        return f"{line.attention} on {column.title}: not run"
    return about(cell.row, column.table, f" on {column.title}")


def about(row: Row, table: Table, where: str = "") -> str:
    """Score, margin, rank and number of seeds of a row in a sentence; its failures where it has no score."""
    if row.test is None:
        return f"{row.label}{where}: {'; '.join(map(str, row.failures))}"
    parts = [f"{row.label}{where}: {table.task['metric']} {estimated(row.test, table)}{unit(table, ' %')}"]
    if row.margin:
        parts.append(f"{estimated(row.margin, table, '+')} against the control {table.control}")
    if row.rank is not None:
        parts.append(f"rank {row.place}")
    parts.append(seed_count([len(row.seeds)]))
    return "; ".join([*parts, *map(str, row.failures)])


def metric(column: Column) -> str:
    """A column's metric in a word: ``%``, ``F1 %``, ``ppl ↓``."""
    name = str(column.table.task["metric"])
    if is_share(column.table):
        return {"accuracy": "%", "f1_micro": "micro F1 %", "f1_macro": "macro F1 %", "r2": "R² %"}.get(name, f"{name.upper()} %")
    name = {"perplexity": "ppl"}.get(name, name)
    return name if column.table.higher_is_better else f"{name} ↓"


def footnotes(found: HeatMap, leads: str = "Bold") -> list[str]:
    """Sentences on how to read the heat map, and on what it leaves out.

    Args:
        leads: mark of the best rows of a task.
    """
    cells = [cell for line in found.lines for cell in line.cells]
    ranked = any(cell.row and cell.row.rank is not None for cell in cells)
    notes = [f"Test scores of {seed_count(found.seeds)}{', which says nothing about noise' if found.seeds == (1,) else ''}."]
    notes.append(
        f"{leads}: no mechanism of the task is better beyond noise."
        if ranked
        else f"{leads}: the best mean of its task, where there are no ranks."
    )
    if any(cell.shade for cell in cells):
        notes.append("Rows are ordered by average shade, where an empty cell counts as no shade.")
    unshaded = grouped((column.unshaded, column.title) for column in found.columns if column.unshaded)
    notes += [f"Not shaded: {', '.join(names)} ({reason})." for reason, names in unshaded.items()]
    if any(not column.table.higher_is_better for column in found.columns):
        notes.append("↓: lower is better.")
    if any(cell.row and cell.row.test and cell.row.failures for cell in cells):
        notes.append("2/3: two of three seeds have a score.")
    if tuned := sorted({key for cell in cells if cell.row and cell.row.tuning for key in cell.row.tuning.space}):
        notes.append(f"Each row has its own {', '.join(tuned)}, chosen on validation.")
    if found.several:
        notes.append(f"Of several settings, the one that is best on validation is shown: {', '.join(found.several)}.")
    if found.left_out:
        notes.append(f"{found.left_out} mechanisms with less average shade are left out.")
    return [*notes, *(f"{column.said}." for column in found.costs)]
