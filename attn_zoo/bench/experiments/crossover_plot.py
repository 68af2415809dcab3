"""Plot of cost against length with fitted exponents, and of crossovers with their intervals below the curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attn_zoo.bench.compare import quartiles
from attn_zoo.bench.experiment import KINDS
from attn_zoo.bench.experiments import crossover as analysis
from attn_zoo.bench.experiments.crossover import BASELINES, Crossover
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.tables import machine
from attn_zoo.plotting.theme import INK, MARKERS, MUTED, PAPER, SERIES, check_plot, save, settings

BASELINE_STYLES: Mapping[str, Mapping[str, Any]] = {
    "materialised": {"color": MUTED, "linewidth": 2.0, "linestyle": (0, (4, 1.5))},
    "sdpa": {"color": INK, "linewidth": 2.0},
}

UNITS: Mapping[str, tuple[str, float]] = {
    "time": ("ms a step", 1e3),
    "memory": ("MiB a step", 2.0**-20),
}
"""Axis unit of each quantity, and the factor that converts measured values to it."""


def plot_crossover(found: Measurement, path: Path) -> None:
    """Draw the plot of a measurement of ``experiment=crossover`` into the file ``path``: costs against the length, and crossovers.
    Equal measurements give the same SVG, byte for byte.

    Raises:
        ValueError: ``check_plot`` does not accept the path, or every measurement failed.
    """
    check_plot(path)
    cells = list(found.cells)
    quantities = [q for q in UNITS if any(analysis.cost(cell, q) is not None for cell in cells)]
    if not quantities:
        raise ValueError("there is nothing to plot, because every measurement failed; the table gives the reasons. Leave plot= out")
    import matplotlib
    from matplotlib.figure import Figure

    mechanisms = analysis.compared(cells)
    strip = 0.35 + 0.24 * len(mechanisms)
    with matplotlib.rc_context(settings("crossover")):
        figure = Figure(figsize=(11.0, 0.9 + len(quantities) * (3.6 + strip)), layout="constrained")
        figure.suptitle(_title(found), fontsize=8.5, color=MUTED, x=0.012, ha="left")
        grid = figure.subplots(2 * len(quantities), len(KINDS), sharex=True, height_ratios=[3.6, strip] * len(quantities))
        for row, quantity in enumerate(quantities):
            for column, kind in enumerate(KINDS):
                _curves(grid[2 * row][column], cells, mechanisms, quantity, kind)
                _crossovers(grid[2 * row + 1][column], cells, mechanisms, quantity, kind, named=column == 0)
        _legend(figure)
        _length_axis(grid, sorted({cell.length for cell in cells}))
        save(figure, path)


def _title(found: Measurement) -> str:
    settings = found.settings
    return (
        f"Cost of one attention layer by length: width {settings['dim']}, {settings['heads']} heads, one sequence, "
        f"{settings['precision']}\n{machine(found)}"
    )


def _curves(axes: Any, cells: Sequence[Cell], mechanisms: Sequence[str], quantity: str, kind: str) -> None:
    """Draw medians with their interquartile range over lengths, with a legend of their exponents."""
    for role, style in BASELINE_STYLES.items():
        _curve(axes, analysis.baseline(cells, role, kind, quantity), quantity, BASELINES[role], style)
    for at, label in enumerate(mechanisms):
        style = {"color": SERIES[at % len(SERIES)], "marker": MARKERS[at % len(MARKERS)], "markersize": 4.5, "linewidth": 1.4}
        _curve(axes, analysis.select(cells, label, kind), quantity, _name(label), style)
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set(xscale="log", yscale="log", ylabel=UNITS[quantity][0])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda found, _: f"{found:,.10g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title(f"{quantity.capitalize()}, {KINDS[kind]}", fontsize=10, loc="left", fontweight="bold")
    axes.grid()
    axes.legend(loc="upper left", labelcolor="linecolor", fontsize=8.5, reverse=True)


def _curve(axes: Any, own: Sequence[Cell], quantity: str, name: str, style: Mapping[str, Any]) -> None:
    scale = UNITS[quantity][1]
    known = [(cell, found * scale) for cell in own if (found := analysis.cost(cell, quantity)) is not None]
    if not known:
        return
    lengths, slope = [cell.length for cell, _ in known], analysis.exponent(own, quantity)
    axes.plot(lengths, [found for _, found in known], label=name + ("" if slope is None else f"  n^{slope:.2f}"), **style)
    if quantity != "memory":
        spreads = [quartiles(cell.all("seconds")) for cell, _ in known]
        low, high = [s[0] * scale for s in spreads], [s[2] * scale for s in spreads]
        axes.fill_between(lengths, low, high, color=style["color"], alpha=0.18, linewidth=0)


def _crossovers(axes: Any, cells: Sequence[Cell], mechanisms: Sequence[str], quantity: str, kind: str, *, named: bool) -> None:
    """Draw the crossovers of each mechanism with both baselines and their intervals, one line per mechanism."""
    for at, label in enumerate(mechanisms):
        for role, offset in zip(BASELINES, (-0.18, 0.18), strict=True):
            if (found := analysis.crossover(cells, label, role, kind, quantity)) is not None:
                _interval(axes, found, at + offset, SERIES[at % len(SERIES)], filled=role == "sdpa")
    axes.set(ylim=(len(mechanisms) - 0.5, -0.5), yticks=range(len(mechanisms)))
    axes.set_yticklabels([_name(label) for label in mechanisms] if named else [])
    for at, tick in enumerate(axes.get_yticklabels()):
        tick.set_color(SERIES[at % len(SERIES)])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")


def _interval(axes: Any, found: Crossover, height: float, colour: str, *, filled: bool) -> None:
    """Draw a dot with its interval, or an arrowhead at the edge of the range if the crossover lies beyond it."""
    clip = [min(max(length, found.shortest), found.longest) for length in (found.low, found.at, found.high)]
    axes.plot([clip[0], clip[2]], [height, height], color=colour, linewidth=1.6, solid_capstyle="butt")
    marker = {0.0: "<", math.inf: ">"}.get(found.at, "o")
    face = colour if filled else PAPER
    axes.plot([clip[1]], [height], marker=marker, markersize=5.5, color=colour, markerfacecolor=face, clip_on=False)


def _legend(figure: Any) -> None:
    from matplotlib.lines import Line2D

    dots: dict[str, Any] = {"linestyle": "none", "color": INK, "markersize": 5.5}
    handles = [
        Line2D([], [], marker="o", markerfacecolor=PAPER, label="costs less than materialised softmax from here on", **dots),
        Line2D([], [], marker="o", label="than SDPA", **dots),
        Line2D([], [], marker="<", label="from the shortest length on", **dots),
        Line2D([], [], marker=">", label="never in range", **dots),
        Line2D([], [], color=INK, linewidth=1.6, label="95 % interval"),
    ]
    title = f"Exponents are fitted to the {analysis.FITTED_LENGTHS} longest lengths; shades are interquartile ranges."
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": 5, "labelcolor": MUTED}
    figure.legend(handles=handles, fontsize=8.5, title=title, title_fontsize=8.5, **place)


def _length_axis(grid: Any, lengths: Sequence[int]) -> None:
    for axes in grid.flat:
        axes.set_axisbelow(True)
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
        axes.set_xticks([], minor=True)
        axes.set_xlim(lengths[0] / 1.12, lengths[-1] * 1.12)
        axes.tick_params(axis="x", labelsize=8)
    for axes in grid[1::2].flat:
        axes.tick_params(axis="x", labelbottom=True)
        axes.set_xlabel("length n", fontsize=8.5)


def _name(label: str) -> str:
    """Return the name of a mechanism without its options."""
    return label.partition("[")[0]
