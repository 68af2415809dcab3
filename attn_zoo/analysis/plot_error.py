"""Plot of approximation error against FLOPs, with lines for the cost of softmax and the error of a uniform average."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attn_zoo.plotting.labels import Box, beside_points
from attn_zoo.plotting.theme import GRID, INK, MUTED, PAPER, SERIES, save, settings
from attn_zoo.terminal import short

_EXACT = 1e-9
"""A mechanism with at most this error counts as exact, because float64 rounding can cause it."""
_SIZE = (11.0, 7.4)
_MARKERS = ("o", "s", "^", "D", "P", "X", ">")
_TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)

Row = Mapping[str, Any]


def plot_error(found: Mapping[str, Any], folder: Path, *, title: str) -> list[Path]:
    """Draw the result of ``attn-zoo analyze error`` into ``folder`` as error.png and error.svg, and return both paths.

    Args:
        found: result of ``measure_error``.
        title: description of the inputs.
    """
    import matplotlib
    from matplotlib.figure import Figure

    lines = _lines(found["rows"])
    with matplotlib.rc_context(settings("error")):
        figure = Figure(figsize=_SIZE)
        figure.text(
            0.012, 0.985, "How far from exact softmax attention, and at what cost", va="top", fontsize=12, fontweight="bold"
        )
        figure.text(0.012, 0.95, title, va="top", fontsize=8.5, color=MUTED)
        axes = figure.add_axes((0.07, 0.125, 0.92, 0.78))
        zero, floor = _axes(axes, found)
        for at, line in enumerate(lines):
            _draw_line(axes, line, zero, floor, _colour(line[0], at), _MARKERS[at % len(_MARKERS)])
        _draw_references(axes, found)
        unnamed = _name_lines(figure, axes, lines, zero, floor)
        _legend(figure, found["rows"], unnamed)
        return save(figure, folder / "error.png", folder / "error.svg")


def _lines(rows: Sequence[Row]) -> list[list[Row]]:
    """Group rows into lines by mechanism and varied option, in order. Softmax is left out, because it has a reference line."""
    lines: dict[tuple[str, str | None], list[Row]] = defaultdict(list)
    for row in rows:
        if row["attention"] != "softmax":
            lines[row["attention"], row["dial"]].append(row)
    return list(lines.values())


def _axes(axes: Any, found: Mapping[str, Any]) -> tuple[float, float]:
    """Set limits and ticks. Return the positions that stand for zero cost and zero error, which logarithmic axes lack."""
    rows = [row for row in found["rows"] if row["attention"] != "softmax"]
    costs = [found["softmax"]["flops"], *(row["flops"] for row in rows if row["flops"])]
    errors = [found["uniform"], *(row["error"] for row in rows if row["error"] > _EXACT)]
    free = any(not row["flops"] for row in rows)
    exact = any(row["error"] <= _EXACT for row in rows)
    zero = min(costs) / 2.2
    floor = min(errors) / (1.35 if exact else 1.12)
    axes.set(xscale="log", yscale="log")
    axes.set_xlim((zero if free else min(costs)) / 1.5, max(costs) * 1.9)
    axes.set_ylim(floor / (1.06 if exact else 1.0), max(errors) * 1.25)
    _ticks(axes, costs, zero if free else None)
    axes.set_xlabel("FLOPs of one layer and one sequence, forward, matrix products only", fontsize=9)
    axes.set_ylabel("‖Y − Y_exact‖ / ‖Y_exact‖, mean over heads", fontsize=9)
    axes.grid(which="major", color=GRID, linewidth=0.6)
    return zero, floor


def _ticks(axes: Any, costs: Sequence[float], zero: float | None) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = axes.get_ylim()
    heights = [tick for tick in _TICKS if low <= tick <= high]
    axes.yaxis.set_major_locator(FixedLocator(heights))
    axes.set_yticklabels([f"{tick:g}" for tick in heights])
    places = [
        digit * 10.0**power
        for power in range(math.floor(math.log10(min(costs))), math.ceil(math.log10(max(costs))) + 1)
        for digit in (1, 2, 5)
        if min(costs) / 1.2 <= digit * 10.0**power <= max(costs) * 1.9
    ]
    axes.xaxis.set_major_locator(FixedLocator([*([] if zero is None else [zero]), *places]))
    axes.set_xticklabels([*([] if zero is None else ["none"]), *map(short, places)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    if zero is not None:
        axes.axvline(zero * 1.5, color=GRID, linewidth=1.2)


def _place(row: Row, zero: float, floor: float) -> tuple[float, float]:
    return row["flops"] or zero, row["error"] if row["error"] > _EXACT else floor


def _colour(row: Row, at: int) -> str:
    return MUTED if row["control"] else SERIES[at % len(SERIES)]


def _draw_line(axes: Any, line: Sequence[Row], zero: float, floor: float, colour: str, marker: str) -> None:
    """Draw a line. Rows with untrained parameters have hollow markers."""
    places = [_place(row, zero, floor) for row in line]
    axes.plot(*zip(*places, strict=True), color=colour, linewidth=1.3, alpha=0.75, zorder=2)
    for row, place in zip(line, places, strict=True):
        face = PAPER if _untrained(row) else colour
        shape = "v" if row["error"] <= _EXACT else marker
        axes.plot(
            *place, color=colour, marker=shape, markersize=5.5, markerfacecolor=face, markeredgewidth=1.3, zorder=3, clip_on=False
        )


def _untrained(row: Row) -> bool:
    return "untrained" in row["notes"]


def _draw_references(axes: Any, found: Mapping[str, Any]) -> None:
    cost, uniform = found["softmax"]["flops"], found["uniform"]
    axes.axvline(cost, color=INK, linewidth=1.4, zorder=1.5)
    axes.axhline(uniform, color=MUTED, linewidth=1.1, linestyle=(0, (4, 3)), zorder=1.5)
    small: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8}
    top = {"xycoords": ("data", "axes fraction"), "xytext": (4, -3)}
    right = {"xycoords": ("axes fraction", "data"), "xytext": (0, 3)}
    axes.annotate("exact softmax", (cost, 1.0), va="top", ha="left", color=INK, **top, **small)
    axes.annotate(f"uniform average {uniform:.2f}", (1.0, uniform), ha="right", color=MUTED, **right, **small)


def _name_lines(figure: Any, axes: Any, lines: Sequence[Sequence[Row]], zero: float, floor: float) -> list[str]:
    """Write the name of each line next to its last point, and return the names for which there is no room."""
    figure.canvas.draw()
    to_pixels = axes.transData.transform
    places = [[_place(row, zero, floor) for row in line] for line in lines]
    near = 4 * figure.dpi / 72
    taken = [(x - near, y - near, x + near, y + near) for x, y in (to_pixels(place) for line in places for place in line)]
    taken += [tuple(note.get_window_extent().extents) for note in axes.texts]
    avoided = [*_reference_boxes(axes), *_line_boxes(places, to_pixels)]
    names = [_name(line) for line in lines]
    written = beside_points(figure, axes, [line[-1] for line in places], names, taken, avoided)
    colours = {name: _colour(line[0], at) for at, (name, line) in enumerate(zip(names, lines, strict=True))}
    for note in written:
        note.set_color(colours[note.get_text()])
    return sorted(set(names) - {note.get_text() for note in written})


def _reference_boxes(axes: Any) -> list[Box]:
    """Return boxes around the reference lines for the cost of softmax and the error of the uniform average."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    boxes = []
    for line in axes.lines:
        xs, ys = line.get_xdata(), line.get_ydata()
        if line.get_transform() != axes.transData:  # a reference line spans the axes: one of its coordinates is an axes fraction
            ends = [(xs[0], bottom), (xs[1], top)] if xs[0] == xs[1] else [(left, ys[0]), (right, ys[1])]
            low, high = map(axes.transData.transform, ends)
            boxes.append((low[0] - 2, low[1] - 2, high[0] + 2, high[1] + 2))
    return boxes


def _line_boxes(places: Sequence[Sequence[tuple[float, float]]], to_pixels: Any) -> list[Box]:
    """Return small boxes along the lines, which the names of lines must not cover."""
    boxes = []
    for line in places:
        for start, stop in itertools.pairwise(line):
            (x0, y0), (x1, y1) = to_pixels(start), to_pixels(stop)
            steps = max(1, int(math.hypot(x1 - x0, y1 - y0) / 6))
            for at in range(steps + 1):
                x, y = x0 + (x1 - x0) * at / steps, y0 + (y1 - y0) * at / steps
                boxes.append((x - 2, y - 2, x + 2, y + 2))
    return boxes


def _name(line: Sequence[Row]) -> str:
    """Return the name of a line, such as ``performer``. Below the name are the first and last values of the varied option, such as
    ``features 16 to 256``."""
    first, last = line[0], line[-1]
    dial = first["dial"]
    if dial is None or len(line) == 1:
        return str(first["label"]).replace(" ", "\n", 1)
    return f"{first['attention']}\n{dial} {first['options'][dial]} to {last['options'][dial]}"


def _legend(figure: Any, rows: Sequence[Row], unnamed: Sequence[str]) -> None:
    """Draw the legend for hollow and grey markers, and list the lines whose names had no room beside them."""
    from matplotlib.lines import Line2D

    mark: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 5.5, "color": INK}
    entries = []
    if any(_untrained(row) for row in rows):
        entries.append(
            Line2D([], [], markerfacecolor=PAPER, markeredgewidth=1.3, label="untrained parameters or projections", **mark)
        )
    if any(row["control"] for row in rows):
        entries.append(Line2D([], [], label="control", **{**mark, "color": MUTED}))
    if any(row["error"] <= _EXACT and row["attention"] != "softmax" for row in rows):
        entries.append(Line2D([], [], label="exact to rounding", **{**mark, "marker": "v"}))
    if any(not row["flops"] for row in rows):
        entries.append(Line2D([], [], linestyle="none", label="none: no matrix product is made"))
    if unnamed:
        words = ", ".join(name.replace("\n", " ") for name in unnamed)
        entries.append(Line2D([], [], linestyle="none", label=f"no room for the names of: {words}"))
    if entries:
        figure.legend(handles=entries, loc="lower left", ncols=len(entries), labelcolor=MUTED, handlelength=1.2)
