"""Learning curves: validation against steps, seconds and FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attn_zoo.leaderboard.plots.style import FIRST, Style, interval, limits, near_bounds, scale_of, score_axis
from attn_zoo.leaderboard.table import Row, Table
from attn_zoo.plotting.labels import at_ends, folded
from attn_zoo.plotting.theme import MUTED, hover, plain, short

AXES = {
    "step": ("steps", "training steps"),
    "seconds": ("training time", "training time (s)"),
    "flops": ("training FLOPs", "training FLOPs, forward and backward"),
}
"""Name of each horizontal axis in a title and on the axis."""
DRAWN = 8
"""Greatest number of curves in one figure: softmax and linformer, the best row of each other attention, then the next best."""
_DASHES: Sequence[Any] = ("-", (0, (5, 1.6)), (0, (3, 1.2, 1, 1.2)), (0, (1, 1.2)))


def curves_of(table: Table, along: str) -> list[Row]:
    """Rows drawn against ``along``, one of ``AXES``: those that have a curve with it, ``DRAWN`` at most."""
    known = [row for row in table.rows if row.curve and getattr(row.curve[-1], along) is not None]
    firsts = {row.attention: row for row in reversed(known)}
    chosen = [row for row in known if firsts[row.attention] is row]
    chosen.sort(key=lambda row: row.attention not in FIRST)
    chosen += [row for row in known if firsts[row.attention] is not row]
    kept = {row.label for row in chosen[:DRAWN]}
    return [row for row in known if row.label in kept]


def draw_curves(figure: Any, table: Table, along: str, style: Style, top: float) -> None:
    """Fill ``figure`` with the validation curves of ``curves_of``, of which there must be at least one.

    Args:
        top: share of the figure's height that the axes may reach; the title is above it.
    """
    from matplotlib.ticker import MaxNLocator

    rows, scale = curves_of(table, along), scale_of(table)
    axes = figure.add_axes((0.14, 0.15, 0.5, top - 0.15))
    kinds = list(style.markers)
    values: list[float] = [] if table.chance is None else [table.chance * scale]
    for row in rows:
        xs = [float(getattr(point, along)) for point in row.curve]
        means = [point.valid.mean * scale for point in row.curve]
        lows, highs = zip(*(interval(point.valid, table) for point in row.curve), strict=True)
        values += [*means, *lows, *highs]
        line: Any = (0, (2, 1.5)) if row.control else _DASHES[kinds.index(row.implementation) % len(_DASHES)]
        colour = style.colours[row.attention]
        (drawn,) = axes.plot(xs, means, color=colour, linewidth=1.7, linestyle=line, solid_capstyle="round", zorder=3)
        hover(drawn, row.label)
        axes.fill_between(xs, lows, highs, color=colour, alpha=0.13, linewidth=0, zorder=2)
    low, high = limits([v for v in values if v == v], 0.04, 0.04)
    axes.set_ylim(*near_bounds(table, low, high))
    axes.set_xlim(0, max(getattr(row.curve[-1], along) for row in rows))
    axes.xaxis.set_major_formatter(plain if along == "seconds" else short)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set(xlabel=AXES[along][1], ylabel=score_axis(table, "validation"))
    axes.grid(linewidth=0.6)
    _name_ends(figure, axes, table, rows, along, style)


def _name_ends(figure: Any, axes: Any, table: Table, rows: Sequence[Row], along: str, style: Style) -> None:
    scale = scale_of(table)
    ends = [(float(getattr(row.curve[-1], along)), row.curve[-1].valid.mean * scale) for row in rows]
    names, colours = [folded(row.label) for row in rows], [style.colours[row.attention] for row in rows]
    if table.chance is not None:
        axes.axhline(table.chance * scale, color=MUTED, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        ends.append((axes.get_xlim()[1], table.chance * scale))
        names.append("chance")
        colours.append(MUTED)
    at_ends(figure, axes, ends, names, colours)
