"""Plot of approximation error against FLOPs, with lines for the cost of softmax and the error of a uniform average."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attn_zoo.plotting.theme import GRID, INK, MARKERS, MUTED, PAPER, SERIES, hover, save, settings
from attn_zoo.terminal import short

_EXACT = 1e-9
"""A mechanism with at most this error counts as exact, because float64 rounding can cause it."""
_SIZE = (11.0, 6.6)
_NAMED = 24
"""Greatest number of lines with a colour and a marker of their own; others are grey."""
_TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20, 50, 100)

Row = Mapping[str, Any]
Look = tuple[str, str]
"""Colour and marker of a line."""


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
        axes = figure.add_axes((0.065, 0.08, 0.675, 0.82))
        zero, floor = _axes(axes, found)
        looks = _looks(lines)
        for line, look in zip(lines, looks, strict=True):
            _draw_line(axes, line, zero, floor, look)
        _draw_references(axes, found)
        figure.legend(handles=_legend(lines, looks), loc="upper left", bbox_to_anchor=(0.745, 0.92), labelcolor=INK)
        return save(figure, folder / "error.png", folder / "error.svg")


def _lines(rows: Sequence[Row]) -> list[list[Row]]:
    """Group rows into lines by mechanism and varied option. Lines begin with the one that has the smallest error. Softmax is left
    out, because it has a reference line."""
    lines: dict[tuple[str, str | None], list[Row]] = defaultdict(list)
    for row in rows:
        if row["attention"] != "softmax":
            lines[row["attention"], row["dial"]].append(row)
    return sorted(lines.values(), key=lambda line: min(row["error"] for row in line))


def _looks(lines: Sequence[Sequence[Row]]) -> list[Look]:
    """Return the colour and marker of each line. Up to ``_NAMED`` lines have a look of their own: first lines with several rows,
    then those with the smallest errors. All other lines are grey."""
    order = sorted(range(len(lines)), key=lambda at: (lines[at][0]["control"], len(lines[at]) == 1))
    named = sorted(at for at in order[:_NAMED] if not lines[at][0]["control"])
    count = len(SERIES)
    found = {line: (SERIES[at % count], MARKERS[(at + at // count) % len(MARKERS)]) for at, line in enumerate(named)}
    return [found.get(at, (MUTED, "x" if line[0]["control"] else ".")) for at, line in enumerate(lines)]


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


def _draw_line(axes: Any, line: Sequence[Row], zero: float, floor: float, look: Look) -> None:
    """Draw a line. Rows with untrained parameters have hollow markers."""
    places = [_place(row, zero, floor) for row in line]
    axes.plot(*zip(*places, strict=True), color=look[0], linewidth=1.3, alpha=0.75, zorder=2)
    for row, place in zip(line, places, strict=True):
        (point,) = axes.plot(*place, **_marker(row, look), zorder=3, clip_on=False)
        hover(point, f"{row['label']}: {row['error']:.3g}")


def _marker(row: Row, look: Look) -> dict[str, Any]:
    colour, marker = look
    shape = "v" if row["error"] <= _EXACT else "o" if marker == "." else marker
    face = PAPER if _untrained(row) else colour
    size = 4.0 if marker == "." else 5.5
    return {"color": colour, "marker": shape, "markersize": size, "markerfacecolor": face, "markeredgewidth": 1.2}


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


def _name(line: Sequence[Row]) -> str:
    """Return the name of a line, such as ``performer, features 16 to 256``."""
    first, last = line[0], line[-1]
    dial = first["dial"]
    if dial is None or len(line) == 1:
        return str(first["label"])
    return f"{first['attention']}, {dial} {first['options'][dial]} to {last['options'][dial]}"


def _legend(lines: Sequence[Sequence[Row]], looks: Sequence[Look]) -> list[Any]:
    """Return the entries of the legend: lines with a look of their own, and what grey, hollow and other markers mean."""
    from matplotlib.lines import Line2D

    rows = [row for line in lines for row in line]
    found = [
        Line2D([], [], linewidth=1.3 if len(line) > 1 else 0, label=_name(line), **_marker(line[0], look))
        for line, look in zip(lines, looks, strict=True)
        if look[0] != MUTED
    ]
    mark: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 5.5, "color": MUTED}
    if (MUTED, ".") in looks:
        found.append(Line2D([], [], label="other mechanisms", **{**mark, "markersize": 4.0}))
    if (MUTED, "x") in looks:
        found.append(Line2D([], [], label="control", **{**mark, "marker": "x"}))
    if any(map(_untrained, rows)):
        found.append(Line2D([], [], markerfacecolor=PAPER, label="hollow: untrained", **mark))
    if any(row["error"] <= _EXACT for row in rows):
        found.append(Line2D([], [], label="exact to rounding", **{**mark, "marker": "v"}))
    if any(not row["flops"] for row in rows):
        found.append(Line2D([], [], linestyle="none", label="none: no matrix product is made"))
    return found
