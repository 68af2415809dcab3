"""Plots of scores against a cost, with the Pareto front."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.escapes import label
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard import compare
from attn_zoo.leaderboard.heatmap import about
from attn_zoo.leaderboard.plots.style import FIRST, Style, bar, interval, limits, near_bounds, scale_of, score_axis
from attn_zoo.leaderboard.table import COUNTED, Row, Table
from attn_zoo.plotting.labels import Box, beside_points, folded, overlap
from attn_zoo.plotting.theme import INK, MUTED, PAPER, hover, plain, short

AXES = {
    "FLOPs": ("forward FLOPs", "FLOPs of a forward pass, per example"),
    "time": ("training time", "training time (s)"),
    "memory": ("peak memory", "peak memory of a training step (MiB)"),
    "parameters": ("parameters", "parameters"),
}
"""Name of each cost in a title and on an axis."""
_LOGARITHMIC_FROM = 8.0
"""Ratio of the largest to the smallest cost from which the axis is logarithmic."""
NAMED = 16
"""Number of points with names and intervals: softmax and linformer, those on the front, then the best."""
_STEP = 0.07
"""Distance between the marks of points beyond the axis, as a share of the axis, so that none hides another."""
_ROOM = 3.0
"""Largest factor by which controls and chance stretch the axis; beyond it, an arrow at the axis' end shows their score."""


def cost_of(row: Row, cost: str) -> float | None:
    """Cost of a row as drawn, with bytes in MiB; None where it was not measured."""
    value = compare.cost_of(row, cost)
    return None if value is None else value / (2**20 if cost == "memory" else 1)


@dataclass(frozen=True, slots=True)
class _Point:
    """Point of a row in the plot."""

    row: Row
    x: float
    score: float
    y: float
    """Height as drawn; near the end of the axis where the score is beyond it."""
    ends: tuple[float, float]
    """Ends of its interval; both ``y`` where the score is beyond the axis."""
    name: str
    beyond: str
    """Marker of a score beyond the axis; empty where the score is within it."""


def draw_cost(figure: Any, table: Table, cost: str, style: Style, top: float) -> None:
    """Fill ``figure`` with the table's scores against ``cost``, one of ``COSTS``, which at least one scored row has.

    Args:
        top: share of the figure's height that the axes may reach; the title is above it.
    """
    rows = [row for row in table.rows if row.test and cost_of(row, cost) is not None]
    low, high = ends = _score_limits(table, rows)
    points = _points(table, cost, rows, ends)
    axes = figure.add_axes((0.15, 0.22, 0.835, top - 0.22))
    axes.set_ylim(low, high)
    _cost_axis(axes, [point.x for point in points])
    axes.xaxis.set_major_formatter(short if cost in COUNTED else plain)
    axes.xaxis.set_minor_formatter("")
    axes.set(xlabel=AXES[cost][1], ylabel=score_axis(table, "test"))
    axes.grid(linewidth=0.6)
    fronts = grouped((row.block_of(cost), row) for row in table.rows if cost in row.fronts)
    for front in fronts.values():  # one for a counted cost, one for each block for a measured cost
        _draw_front(axes, [(point.x, point.score) for point in points if point.row in front])
    named = sorted(points, key=lambda p: (p.row.attention not in FIRST, cost not in p.row.fronts))[:NAMED]
    _draw_points(axes, table, points, named, style)
    _legend(figure, points, style)
    places = [(point.x, point.y) for point in named]
    chance, line = _draw_chance(figure, axes, table, ends, places)
    bars = [_bar_box(figure, axes, point) for point in named if point.ends[0] < point.ends[1]]
    beside_points(figure, axes, places, [point.name for point in named], chance, [*line, *bars])


def _points(table: Table, cost: str, rows: Sequence[Row], ends: tuple[float, float]) -> list[_Point]:
    """Points of the rows; those beyond an end of the axis one above the other, so that none hides another."""
    (low, high), scale = ends, scale_of(table)
    points, outside = [], 0
    for row in rows:
        x = cost_of(row, cost)
        assert x is not None and row.test is not None, "only rows with a score and this cost are drawn"
        y, name = row.test.mean * scale, folded(row.label)
        if low <= y <= high:
            points.append(_Point(row, x, y, y, interval(row.test, table), name, ""))
            continue
        step = (0.04 + _STEP * outside) * (high - low)
        edge, marker = (low + step, "v") if y < low else (high - step, "^")
        points.append(_Point(row, x, y, edge, (edge, edge), f"{name} {y:.1f}", marker))
        outside += 1
    return points


def _cost_axis(axes: Any, xs: Sequence[float]) -> None:
    if min(xs) > 0 and max(xs) / min(xs) >= _LOGARITHMIC_FROM:
        axes.set_xscale("log")
        axes.set_xlim(min(xs) / 1.6, max(xs) * 1.6)
    else:
        axes.set_xlim(*limits(xs, 0.1, 0.16))


def _score_limits(table: Table, rows: Sequence[Row]) -> tuple[float, float]:
    """Ends of the axis of scores: around contenders and their intervals, and around controls and chance where those are near."""
    scale = scale_of(table)
    core = [row for row in rows if not row.control] or list(rows)
    held: list[float] = []
    for row in core:
        assert row.test is not None
        held += interval(row.test, table)
    room = _ROOM * (max(held) - min(held) or abs(held[0]) * 0.1 or 1.0)
    others = [row.test.mean * scale for row in rows if row.control and row.test]
    others += [] if table.chance is None else [table.chance * scale]
    for value in sorted(others, key=lambda v: abs(v - held[0])):
        if max([*held, value]) - min([*held, value]) <= room:
            held.append(value)
    beyond = set(others) - set(held)
    low, high = limits(held, 0.2 if any(v < min(held) for v in beyond) else 0.1, 0.2 if any(v > max(held) for v in beyond) else 0.1)
    return near_bounds(table, low, high)


def _draw_front(axes: Any, points: Sequence[tuple[float, float]]) -> None:
    points = sorted(points)
    end = axes.get_xlim()[1]
    xs, ys = [*(x for x, _ in points), end], [*(y for _, y in points), points[-1][1]]
    axes.plot(xs, ys, drawstyle="steps-post", color=MUTED, linewidth=5, alpha=0.22, zorder=1.2, solid_joinstyle="miter")


def _draw_points(axes: Any, table: Table, points: Sequence[_Point], named: Sequence[_Point], style: Style) -> None:
    """Draw rows as points; those without a name are small, pale and without their interval."""
    for point in reversed(points):
        colour, control, bold = style.colours[point.row.attention], point.row.control, point in named
        if bold and point.ends[0] < point.ends[1] and point.row.test:
            error = bar(point.row.test, table)
            axes.errorbar([point.x], [point.y], error, ecolor=colour, elinewidth=1.1, capsize=2.5, fmt="none", zorder=2)
        look = {"markersize": 6.5, "zorder": 3} if bold else {"markersize": 4, "zorder": 1.4, "alpha": 0.45}
        face = {"markerfacecolor": PAPER if control else colour, "markeredgewidth": 1.4}
        marker = point.beyond or style.markers[point.row.implementation]
        (drawn,) = axes.plot([point.x], [point.y], linestyle="none", color=colour, marker=marker, **face, **look)
        hover(drawn, about(point.row, table))


def _bar_box(figure: Any, axes: Any, point: _Point) -> Box:
    """Box around a row's interval, which no name may cover."""
    ends = [(point.x, end) for end in point.ends]
    (left, bottom), (right, top) = axes.transData.transform(ends)
    width = 3 * figure.dpi / 72
    return left - width, bottom, right + width, top


def _draw_chance(
    figure: Any, axes: Any, table: Table, ends: tuple[float, float], places: Iterable[tuple[float, float]]
) -> tuple[list[Box], list[Box]]:
    """Draw a dashed line at chance with its label on a side without points; only a note at the axis' end if chance is beyond it.

    Returns:
        Boxes of the label and of the line; empty where there are none.
    """
    if table.chance is None:
        return [], []
    (low, high), value = ends, table.chance * scale_of(table)
    inside = low <= value <= high
    height = min(max(value, low), high)
    said = f"chance {value:.1f}" + ("" if inside else " ↓" if value < low else " ↑")
    side, lift = ("top", -2) if value > high else ("bottom", 2)
    note = axes.annotate(
        said, (0.99, height), xycoords=("axes fraction", "data"), xytext=(0, lift), textcoords="offset points",
        ha="right", va=side, fontsize=8, color=MUTED,
    )  # fmt: skip
    near = 5 * figure.dpi / 72
    marks = [(x - near, y - near, x + near, y + near) for x, y in map(axes.transData.transform, places)]
    if any(overlap(_box(note), mark) for mark in marks):
        note.xy = (0.01, height)
        note.set_horizontalalignment("left")
    if not inside:
        return [_box(note)], []
    axes.axhline(value, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    frame = axes.get_window_extent()
    line = frame.y0 + (value - low) / (high - low) * frame.height
    return [_box(note)], [(frame.x0, line - 1, frame.x1, line + 1)]


def _box(note: Any) -> Box:
    extent = note.get_window_extent()
    return extent.x0 - 4, extent.y0, extent.x1 + 4, extent.y1


def _legend(figure: Any, points: Sequence[_Point], style: Style) -> None:
    """Draw the legend: the Pareto front and, where they occur, several implementations and controls."""
    from matplotlib.lines import Line2D

    kinds = sorted({point.row.implementation for point in points}, key=lambda name: (name != "eager", name))
    entries = [Line2D([], [], color=MUTED, linewidth=5, alpha=0.35, label="Pareto front")]
    mark: dict[str, Any] = {"linestyle": "none", "color": INK, "markersize": 5.5}
    entries += [Line2D([], [], marker=style.markers[kind], label=label(kind), **mark) for kind in kinds if len(kinds) > 1]
    if any(point.row.control for point in points):
        hollow: dict[str, Any] = {"marker": "o", "markerfacecolor": "none", "markeredgewidth": 1.4, "markersize": 5.5}
        entries.append(Line2D([], [], linestyle="none", color=MUTED, label="control", **hollow))
    figure.legend(handles=entries, loc="lower left", ncols=len(entries), labelcolor=MUTED, handlelength=1.4, columnspacing=1.4)
