"""Comparison with published scores as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attn_zoo.checks import check_text
from attn_zoo.leaderboard.literature import Literature, LiteratureRow, literature
from attn_zoo.leaderboard.metrics import style
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.leaderboard.table import Table
from attn_zoo.leaderboard.text import Grid, tabulated
from attn_zoo.published import SCORE, Anchor, Figure, anchor, anchors, figures, phrases

FORMATS = ("terminal", "github", "latex")


def render_published(tables: Sequence[Table], format: str = "terminal", *, attention: str | None = None) -> str:
    """Return recorded scores beside the published scores of each source, as text.

    For each task, a second table shows the settings in which the sources differ from ours. A last table has the sources with their
    known flaws.

    Args:
        format: one of ``FORMATS``.
        attention: mechanism whose rows are shown; None for all.

    Raises:
        ValueError: there is no such format.
    """
    check_text("format with --published", format, FORMATS)
    found = [compared for table in tables if (compared := literature(table, attention))]
    if not found:
        there = sorted({figure.task for figure in figures(metric=SCORE) if figure.task})
        return f"No published scores are known for these tables; there are published scores for {', '.join(there)}."
    return "\n\n".join([*(part for compared in found for part in _of_task(compared, format)), _sources(found, format)])


def difference_lines(compared: Literature, row: LiteratureRow) -> list[str]:
    """Return one line per source, with its published scores for a row and how its settings differ from ours."""
    lines = []
    for source in compared.sources:
        if source.title in row.figures:
            told = phrases((*compared.difference[source.title], *row.difference[source.title]))
            lines.append(f"{source.title}: {printed(row.figures[source.title])} ({source.cite}); {'; '.join(told)}")
    return lines


def anchor_beside(attention: str, task: Mapping[str, Any]) -> Anchor | None:
    """Return the anchor of a mechanism: a published score on another task, shown beside the mechanism's score on ``task``. Return
    None if it has no anchor, or if the published score is on ``task`` itself.

    Args:
        task: recorded card of the task.
    """
    found = anchor(attention, bool(task.get("causal")))
    return None if found and found.figure and found.figure.task == task["name"] else found


def anchor_line(found: Anchor) -> str:
    """Return a line about an anchor: the published score, its task and source, and how the published experiment differs from
    ours."""
    score, task, source = _anchored(found)
    return f"anchor: {score} on {task} ({source}); {found.differs}" if found.figure else f"anchor: {score}; {found.differs}"


def anchor_table(format: str) -> str:
    """Return a table of all anchors (published scores that ours are compared with) as text. It has one row per mechanism and
    direction (causal or bidirectional)."""
    head = ["attention", "direction", "published score", "task", "source", "how it differs"]
    body = [
        [name, "causal" if causal else "bidirectional", *_anchored(found), found.differs]
        for (name, causal), found in anchors().items()
    ]
    return tabulated(Grid("Published scores beside the main rows", head, body), format)


def _anchored(found: Anchor) -> tuple[str, str, str]:
    """Return the published score of an anchor with its unit, its task, and its source, as text."""
    figure = found.figure
    if figure is None:
        return "none found", "-", "-"
    cite = figure.source.cite
    return f"{figure.printed} {figure.unit}", found.task, cite if cite.endswith(figure.where) else f"{cite}, {figure.where}"


def _of_task(compared: Literature, format: str) -> Iterator[str]:
    """Yield the scores of one task, and the settings that differ."""
    metric = compared.task["metric"]
    titles = [source.title for source in compared.sources]
    head = ["attention", f"ours, {metric} (%)", *(f"{s.title} {s.year}" for s in compared.sources), "spread of sources"]
    body = [
        [
            row.label,
            "-" if row.ours is None else _ours(row.ours, metric),
            *(printed(row.figures[title]) if title in row.figures else "-" for title in titles),
            "-" if row.spread is None else f"{row.spread:.1f}",
        ]
        for row in compared.rows
    ]
    yield tabulated(Grid(f"{compared.task['title']}: ours beside the literature (accuracy in %, as printed)", head, body), format)
    if settings := _settings(compared):
        yield tabulated(Grid(f"{compared.task['title']}: settings", ["setting", "ours", *titles], settings), format)


def _settings(compared: Literature) -> list[list[str]]:
    """Return a line for each setting in which a source differs from all rows or from one: the setting, ours, and those of the
    sources."""
    every = [("", compared.difference), *((row.label, row.difference) for row in compared.rows)]
    cells: dict[tuple[str, str], dict[str, list[str]]] = {}
    for label, by_source in every:
        for title, differences in by_source.items():
            for each in differences:
                name = f"{each.setting} of {label}" if label and len(compared.rows) > 1 else each.setting
                told = cells.setdefault((name, each.here), {}).setdefault(title, [])
                told.append("not given" if each.there is None else each.there)
    return [
        [*setting, *(" and ".join(found.get(source.title, ["same"])) for source in compared.sources)]
        for setting, found in cells.items()
    ]


def _sources(found: Sequence[Literature], format: str) -> str:
    """Return a table of the sources of all tasks, with their known flaws and notes."""
    body = []
    for source in dict.fromkeys(source for compared in found for source in compared.sources):
        flaws: dict[str, list[str]] = {}
        for compared in found:
            own = [flaw for flaw in compared.flaws.get(source.title, ()) if flaw not in source.flaws]
            notes = [n for row in compared.rows for f in row.figures.get(source.title, ()) for n in f.notes]
            for flaw in (*own, *notes):
                flaws.setdefault(flaw, []).append(compared.task["title"])
        every = len([compared for compared in found if source in compared.sources])
        told = [flaw if len(set(tasks)) == every else f"{', '.join(dict.fromkeys(tasks))}: {flaw}" for flaw, tasks in flaws.items()]
        seeds = "not stated" if source.seeds is None else str(source.seeds)
        body.append([source.title, source.cite, source.hardware, seeds, "; ".join([*source.flaws, *told])])
    return tabulated(Grid("Sources", ["source", "publication", "hardware", "seeds", "known flaws and notes"], body), format)


def printed(found: Sequence[Figure]) -> str:
    """Return a published score as its source prints it. If there are several scores, return their range."""
    low, high = min(found, key=lambda f: f.value), max(found, key=lambda f: f.value)
    return low.printed if low.value == high.value else f"{low.printed} to {high.printed}"


def _ours(score: Estimate, metric: str) -> str:
    return f"{score.written(*style(metric))} ({score.count} seed{'' if score.count == 1 else 's'})"
