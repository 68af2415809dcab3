"""Scores against cost as curves: a mechanism over its hyperparameters, a panel for each task and cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.escapes import label
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.plots.axes import CostAxis
from attn_zoo.leaderboard.plots.style import Style, bar, interval, limits, near_bounds, scale_of, score_axis
from attn_zoo.leaderboard.table import Row, Table
from attn_zoo.plotting.labels import at_ends
from attn_zoo.plotting.theme import INK, MUTED, plain, short

COLUMNS = 3
PANELS = 9
"""Greatest number of tasks in one figure, in at most ``COLUMNS`` columns."""
CURVES = 8
"""Greatest number of curves in one panel; those of the best rows are drawn."""
_PANEL = (4.5, 3.1)
"""Width and height of a panel in inches."""
_LEFT, _RIGHT, _BELOW, _ABOVE = 0.62, 0.1, 0.52, 0.3
"""Margins of a panel around its axes in inches; labels at the curves' ends take more on the right."""
_TICKS: Sequence[Sequence[float]] = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))
"""Tick steps of logarithmic axes; the coarsest that gives three ticks is used, and equidistant ticks where none does."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One mechanism over its hyperparameters."""

    attention: str
    name: str
    """Attention, and an implementation that was asked for by name."""
    rows: tuple[Row, ...]
    """Settings in the order of their hyperparameter, or by ascending cost where several differ."""
    varied: str
    """Hyperparameter in which the rows differ: ``projected_length 8 to 128``."""


def curves_of(table: Table, cost: CostAxis) -> list[Curve]:
    """Curves of a table against a cost, for the ``CURVES`` best mechanisms with scores at two costs or more.

    A curve joins rows of one kind of implementation and, for a measured cost, of one block. Rows whose hyperparameters were found
    by a search are left out, because a study chooses a single point.
    """
    known = [row for row in table.rows if row.test and not row.control and cost.of(row)]  # sorted, the best first
    fixed = [row for row in known if not any(key.startswith("attention.") for key in row.tuned)]
    members = grouped(((row.attention, _name(row), cost.block(row)), row) for row in fixed)
    found = [
        Curve(attention, name, tuple(_in_order(rows, cost)), _varied(rows))
        for (attention, name, _), rows in members.items()
        if len({cost.of(row) for row in rows}) > 1
    ]
    return found[:CURVES]


def _name(row: Row) -> str:
    """A row's label without its hyperparameters."""
    return row.attention if row.block.measured_as in ("auto", "eager") else f"{row.attention} ({row.block.measured_as})"


def columns_of(panels: int) -> int:
    """Number of columns of a figure with so many panels."""
    return 2 if panels == 4 else min(panels, COLUMNS)


def size_of(panels: int, columns: int) -> tuple[float, float]:
    """Width and height in inches of a figure of so many panels in so many columns."""
    return columns * _PANEL[0], math.ceil(panels / columns) * _PANEL[1]


def draw_tradeoff(figure: Any, panels: Sequence[tuple[Table, CostAxis]], columns: int, style: Style, top: float) -> None:
    """Fill ``figure`` with panels line by line; each panel must have curves.

    Args:
        top: share of the figure's height that the panels may reach; the title is above it.
    """
    lines = math.ceil(len(panels) / columns)
    width, height = figure.get_size_inches()
    for at, (table, cost) in enumerate(panels):
        line, column = divmod(at, columns)
        panel = top / lines
        left = (column * width / columns + _LEFT) / width
        below = top - (line + 1) * panel + _BELOW / height
        box = (left, below, 1 / columns - (_LEFT + _RIGHT) / width, panel - (_BELOW + _ABOVE) / height)
        _draw_panel(figure, figure.add_axes(box), table, cost, style, (column + 1) / columns)


def _differing(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Values in each row of the options in which the rows differ, heads included."""
    settings = [{**row.options, "heads": row.heads} for row in rows]
    known = {name: [found.get(name) for found in settings] for name in dict.fromkeys(name for found in settings for name in found)}
    return {name: values for name, values in known.items() if len(set(map(str, values))) > 1}


def _in_order(rows: Sequence[Row], cost: CostAxis) -> list[Row]:
    """Sort rows by the only option that differs, if it is a number, because measured costs are noisy; else by ascending cost."""
    differing = list(_differing(rows).values())
    if len(differing) == 1 and all(isinstance(value, int | float) for value in differing[0]):
        return [row for _, row in sorted(zip(differing[0], rows, strict=True), key=lambda pair: pair[0])]
    return sorted(rows, key=lambda row: (cost.of(row) or 0.0, row.label))


def _varied(rows: Sequence[Row]) -> str:
    """Names of the options that differ, with the ends of the only one if it is a number."""
    differing = _differing(rows)
    for name, values in differing.items():
        if len(differing) == 1 and all(isinstance(value, int | float) for value in values):
            return f"{name} {min(values):g} to {max(values):g}"
    return ", ".join(differing)


def _draw_panel(figure: Any, axes: Any, table: Table, cost: CostAxis, style: Style, right: float) -> None:
    curves, scale = curves_of(table, cost), scale_of(table)
    softmax = next((row for row in table.rows if row.attention == "softmax" and row.test and cost.of(row)), None)
    control = table.control_row
    rows = [row for curve in curves for row in curve.rows] + ([softmax] if softmax else [])
    xs = [cost.of(row) or math.nan for row in rows]
    _axes(axes, table, [*rows, *([control] if control else [])], xs, cost)
    ends: list[tuple[float, float]] = []
    for curve in curves:
        places = [cost.of(row) for row in curve.rows]
        scores = [row.test for row in curve.rows if row.test]
        means, bars = [score.mean * scale for score in scores], [bar(score, table) for score in scores]
        spreads = [[low[0] for low, _ in bars], [high[0] for _, high in bars]]
        look = {"color": style.colours[curve.attention], "marker": style.shapes[curve.attention], "markersize": 4.5}
        axes.errorbar(places, means, spreads, elinewidth=0.8, capsize=1.8, linewidth=1.6, zorder=3, **look)
        ends.append((places[-1] or math.nan, means[-1]))
    labels = [(label(curve.name), style.colours[curve.attention], style.shapes[curve.attention]) for curve in curves]
    end = axes.get_xlim()[1]
    if softmax and softmax.test:
        mean, spread = softmax.test.mean * scale, bar(softmax.test, table)
        axes.axhline(mean, color=INK, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        axes.errorbar([cost.of(softmax)], [mean], spread, color=INK, marker="*", markersize=8, elinewidth=0.8, zorder=4)
        ends.append((end, mean))
        labels.append((label(_name(softmax)), INK, "*"))
    if control and control.test:
        mean = control.test.mean * scale
        axes.axhspan(*interval(control.test, table), color=MUTED, alpha=0.18, linewidth=0, zorder=0.5)
        axes.axhline(mean, color=MUTED, linewidth=1.0, zorder=0.6)
        ends.append((end, mean))
        labels.append((f"{label(_name(control))} (c)", MUTED, "_"))
    names, colours, shapes = zip(*labels, strict=True)
    at_ends(figure, axes, ends, names, colours, marks=shapes, right=right, size=7.5)


def _axes(axes: Any, table: Table, rows: Sequence[Row], xs: Sequence[float], cost: CostAxis) -> None:
    """Set scales, ticks and titles; the score axis is inverted where less is better, so that up is better in every panel."""
    low, high = limits([end for row in rows if row.test for end in interval(row.test, table)], 0.05, 0.05)
    low, high = near_bounds(table, low, high, 102.0)
    axes.set_ylim((low, high) if table.higher_is_better else (high, low))
    least, most = min(xs) / 1.15, max(xs) * 1.15
    axes.set_xscale("log")
    axes.set_xlim(least, most)
    axes.set_xticks(log_ticks(least, most), minor=False)
    axes.xaxis.set_major_formatter(short if cost.counted else plain)
    axes.set_xticks([], minor=True)
    axes.set_title(label(str(table.task["title"]), 50), fontsize=9, loc="left", weight="bold")
    axes.set_xlabel(cost.label, fontsize=8)
    axes.set_ylabel(score_axis(table, "test", "axis turned"), fontsize=8)
    axes.tick_params(labelsize=7.5)
    axes.grid(linewidth=0.6)


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers within a logarithmic axis, at least three of them."""
    for steps in _TICKS:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        found = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(found) >= 3:
            return found
    least = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(least))
    step = next(size * power for size in (1.0, 2.0, 2.5, 5.0, 10.0) if size * power >= least)
    return [step * at for at in range(math.ceil(low / step), math.floor(high / step) + 1)]
