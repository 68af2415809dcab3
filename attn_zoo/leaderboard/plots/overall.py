"""Figure over all tasks: mean position between the best control and the best mechanism, against a cost relative to softmax's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from attn_zoo.escapes import label
from attn_zoo.leaderboard.heat_costs import CostColumn
from attn_zoo.leaderboard.heatmap import HeatMap
from attn_zoo.leaderboard.plots.style import FIRST, Style
from attn_zoo.leaderboard.plots.tradeoff import log_ticks
from attn_zoo.plotting.labels import beside_points
from attn_zoo.plotting.theme import GRID, INK, MUTED, PAPER, hover, plain

SIZE = (11.0, 4.6)
"""Width and height in inches."""


@dataclass(frozen=True, slots=True)
class Point:
    """One mechanism over the tasks that it was run on."""

    attention: str
    cost: float
    """Cost as a multiple of softmax's."""
    share: float
    """Mean position between the best control, 0, and the best mechanism of a task, 100; a task on which it failed counts as 0."""
    tasks: int
    whole: bool
    """True if the mechanism was run on every shaded task."""


def points(found: HeatMap, column: CostColumn) -> list[Point]:
    """Mechanisms with a cost that were run on at least half of the shaded tasks, the best first; none for a single task,
    whose own figures tell more."""
    if len(found.columns) < 2:
        return []
    shaded = [at for at, task in enumerate(found.columns) if task.unshaded is None]
    made = []
    for line in found.lines:
        shades = [line.cells[at].shade or 0.0 for at in shaded if line.cells[at].row]
        cost = column.values.get(line.attention)
        if not line.control and cost is not None and shades and 2 * len(shades) >= len(shaded):
            made.append(Point(line.attention, cost, 100 * fmean(shades), len(shades), len(shades) == len(shaded)))
    return sorted(made, key=lambda point: -point.share)


def caption(found: HeatMap, column: CostColumn) -> str:
    """Caption: the scale, the number of tasks, and the mechanisms that are left out."""
    shaded = [task for task in found.columns if task.unshaded is None]
    drawn = points(found, column)
    tasks = "one task" if len(shaded) == 1 else f"{len(shaded)} tasks"
    said = f"Mean over {tasks} of the score on a scale from the best control (0 %) to the best mechanism (100 %)."
    if any(not point.whole for point in drawn):
        said += " Hollow marks: mean over only those tasks that the mechanism was run on, with their number after its name."
    mechanisms = sum(not line.control for line in found.lines)
    if len(drawn) < mechanisms:
        said += f" Not drawn: {mechanisms - len(drawn)} mechanisms run on fewer than half of the tasks or without a known cost."
    return f"{said} {column.said}."


def draw_overall(figure: Any, drawn: Sequence[Point], axis: str, style: Style, top: float) -> None:
    """Fill ``figure`` with ``drawn``, which holds at least one point; points of cost 0 are at the left edge.

    Args:
        axis: label of the axis of costs.
        top: share of the figure's height that the axes may reach.
    """
    free = min((point.cost for point in drawn if point.cost), default=1.0) / 2
    left, below = 0.62 / SIZE[0], 0.5 / SIZE[1]
    axes = figure.add_axes((left, below, 0.985 - left, top - below))
    _axes(axes, [point.cost or free for point in drawn])
    axes.set(xlabel=axis, ylabel="scaled score, mean over tasks (%)")
    for point in drawn:
        colour = style.colours[point.attention]
        look = {"marker": style.shapes[point.attention], "markersize": 10 if point.attention == "softmax" else 7}
        face = {"markerfacecolor": colour if point.whole else PAPER, "markeredgewidth": 1.4, "linestyle": "none"}
        (mark,) = axes.plot([point.cost or free], [point.share], color=colour, zorder=3, **look, **face)
        hover(mark, f"{point.attention}: {point.share:.0f} % at {point.cost:.3g} times the cost of softmax, {point.tasks} tasks")
    front = _front(drawn, free)
    axes.step(*zip(*front, strict=True), where="post", color=MUTED, linewidth=5, alpha=0.22, zorder=1.2)
    named = sorted(drawn, key=lambda point: point.attention not in FIRST)
    places = [(point.cost or free, point.share) for point in named]
    beside_points(figure, axes, places, [label(point.attention) + ("" if point.whole else f" ({point.tasks})") for point in named])


def _axes(axes: Any, costs: Sequence[float]) -> None:
    """Limits, round ticks, and a dotted line at softmax's cost."""
    axes.set_xscale("log")
    axes.set(xlim=(min(*costs, 1.0) / 1.4, max(*costs, 1.0) * 1.8), ylim=(-4, 106))
    axes.xaxis.set_major_formatter(lambda value, at: f"{plain(value, at)}×")
    axes.set_xticks(log_ticks(*axes.get_xlim()))
    axes.set_xticks([], minor=True)
    axes.grid(color=GRID)
    axes.axvline(1.0, color=INK, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)


def _front(drawn: Sequence[Point], free: float) -> list[tuple[float, float]]:
    """Pareto front by ascending cost: points whose share no cheaper point reaches."""
    front: list[tuple[float, float]] = []
    for point in sorted(drawn, key=lambda point: (point.cost, -point.share)):
        if not front or point.share > front[-1][1]:
            front.append((point.cost or free, point.share))
    return front
