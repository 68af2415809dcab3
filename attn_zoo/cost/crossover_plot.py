"""Cost against length on log axes with fitted exponents, and below each the crossovers with their intervals."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attn_zoo.cost.crossover_analysis import (
    BASELINES,
    FITTED_LENGTHS,
    QUANTITIES,
    Crossover,
    baseline,
    crossover,
    exponent,
    labels,
    select,
    value,
)
from attn_zoo.cost.measurement import Figures, Measurement
from attn_zoo.cost.timed import KINDS
from attn_zoo.cost.timing import quartiles

SUFFIXES = (".svg", ".png")

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""By Okabe and Ito, told apart with every common kind of colour vision; markers and names say the same once more."""

MARKERS = ("o", "s", "^", "D", "v", "P")

INK: Mapping[str, str] = {"materialised": "0.55", "sdpa": "0.1"}
"""Greys of the baselines."""

UNITS: Mapping[str, tuple[str, float]] = {
    "time": ("ms a step", 1e3),
    "memory": ("MiB a step", 2.0**-20),
    "energy": ("J a step", 1.0),
}
"""Of the axes, and what the points' numbers are multiplied by."""

STYLE = {
    "font.size": 9,
    "svg.hashsalt": "attn-zoo",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.05,
}


def check_plot(path: Path) -> None:
    """Find out before the work whether its plot can be drawn and written.

    Raises:
        ValueError: another suffix than svg or png, no such folder, or matplotlib is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"plot must end in {' or '.join(SUFFIXES)}; got {str(path)!r}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"plot must be a file in a folder that exists; got {str(path)!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("plot needs the package matplotlib, which is not installed; pip install 'attn-zoo[plots]'")


def plot_crossover(found: Measurement, path: Path) -> None:
    """Draw the figures of one ``experiment=crossover`` into a file; the same figures are the same SVG, byte for byte.

    Raises:
        ValueError: see ``check_plot``; or there is nothing to draw.
    """
    check_plot(path)
    points = list(found.cells.values())
    quantities = [q for q in UNITS if any(value(p, q) is not None for p in points)]
    if not quantities:
        raise ValueError("nothing was measured, so there is nothing to plot")
    import matplotlib
    from matplotlib.figure import Figure

    mechanisms = labels(points, "mechanism")
    strip = 0.35 + 0.24 * len(mechanisms)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11.0, 0.9 + len(quantities) * (3.6 + strip)), layout="constrained")
        figure.suptitle(_title(found), fontsize=10)
        grid = figure.subplots(2 * len(quantities), len(KINDS), sharex=True, height_ratios=[3.6, strip] * len(quantities))
        for row, quantity in enumerate(quantities):
            for column, kind in enumerate(KINDS):
                _curves(grid[2 * row][column], points, mechanisms, quantity, kind)
                _strip(grid[2 * row + 1][column], points, mechanisms, quantity, kind, named=column == 0)
        _key(figure)
        _length_axis(grid, sorted({p.cell.length for p in points}))
        figure.savefig(path, **({"metadata": {"Date": None}} if path.suffix == ".svg" else {"dpi": 160}))


def _title(found: Measurement) -> str:
    setting, machine = found.grid, found.environment
    where = machine["gpu"] or f"{machine['cpu']}, threads: {machine['threads']}"
    return (
        f"Cost of one attention layer by length: width {setting['dim']}, {setting['heads']} heads, one sequence, "
        f"{setting['precision']}\n{where}, torch {machine['torch']}"
    )


def _curves(axes: Any, points: Sequence[Figures], mechanisms: Sequence[str], quantity: str, kind: str) -> None:
    """Medians with their interquartile range over lengths, named at their ends."""
    ends = []
    for role, words in BASELINES.items():
        style = {"color": INK[role], "linewidth": 2.0, "linestyle": (0, (4, 1.5)) if role == "materialised" else "solid"}
        ends.append(_curve(axes, baseline(points, role, kind, quantity), quantity, words, style))
    for at, label in enumerate(mechanisms):
        style = {"color": _colour(at), "marker": MARKERS[at % len(MARKERS)], "markersize": 4.5, "linewidth": 1.4}
        ends.append(_curve(axes, select(points, label, kind), quantity, _short(label), style))
    axes.set(xscale="log", yscale="log", ylabel=UNITS[quantity][0])
    _plain_numbers(axes.yaxis)
    axes.set_title(f"{quantity.capitalize()}, {KINDS[kind]}", fontsize=10, loc="left", fontweight="bold")
    axes.grid(color="0.92", linewidth=0.6, which="major")
    axes.set_axisbelow(True)
    axes.margins(y=0.08)
    _name_ends(axes, [end for end in ends if end is not None])


def _curve(axes: Any, own: Sequence[Figures], quantity: str, name: str, style: Mapping[str, Any]) -> tuple[float, str, str] | None:
    """Draw one; its last value, its name with the exponent, and its colour."""
    scale = UNITS[quantity][1]
    known = [(p, found * scale) for p in own if (found := value(p, quantity)) is not None]
    if not known:
        return None
    lengths, values = [p.cell.length for p, _ in known], [found for _, found in known]
    axes.plot(lengths, values, **style)
    if quantity != "memory":
        spreads = [quartiles(p.all(QUANTITIES[quantity])) for p, _ in known]
        low, high = [s[0] * scale for s in spreads], [s[2] * scale for s in spreads]
        axes.fill_between(lengths, low, high, color=style["color"], alpha=0.18, linewidth=0)
    slope = exponent(own, quantity)
    return values[-1], name + ("" if slope is None else f"  $n^{{{slope:.2f}}}$"), style["color"]


def _name_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names in the right margin, each at the height of its curve's end or as near as the others let it."""
    low, high = (math.log(limit) for limit in axes.get_ylim())
    heights = spread_out([(math.log(end[0]) - low) / (high - low) for end in ends], gap=0.062)
    for (end, name, colour), height in zip(ends, heights, strict=True):
        at = (math.log(end) - low) / (high - low)
        axes.annotate(
            name,
            (1.0, at),
            xytext=(1.05, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=colour,
            fontsize=8.5,
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 0},
        )


def spread_out(heights: Sequence[float], gap: float) -> list[float]:
    """Heights moved apart to ``gap`` or more, in their order, as little as need be and not below 0."""
    order = sorted(range(len(heights)), key=lambda at: heights[at])
    groups: list[list[int]] = []

    def middle(group: Sequence[int]) -> float:
        half = gap * (len(group) - 1) / 2
        return max(half, sum(heights[at] for at in group) / len(group))

    for at in order:
        groups.append([at])
        while len(groups) > 1 and middle(groups[-1]) - middle(groups[-2]) < gap * (len(groups[-1]) + len(groups[-2])) / 2 - 1e-12:
            last = groups.pop()
            groups[-1] = groups[-1] + last
    placed = [0.0] * len(heights)
    for group in groups:
        for place, at in enumerate(group):
            placed[at] = middle(group) + gap * (place - (len(group) - 1) / 2)
    return placed


def _strip(axes: Any, points: Sequence[Figures], mechanisms: Sequence[str], quantity: str, kind: str, *, named: bool) -> None:
    """One row a mechanism: its crossovers with both baselines and their intervals."""
    for at, label in enumerate(mechanisms):
        for role, offset in zip(BASELINES, (-0.18, 0.18), strict=True):
            if (found := crossover(points, label, role, kind, quantity)) is not None:
                _mark(axes, found, at + offset, _colour(at), filled=role == "sdpa")
    axes.set(ylim=(len(mechanisms) - 0.5, -0.5), yticks=range(len(mechanisms)))
    axes.set_yticklabels([_short(label) for label in mechanisms] if named else [])
    for at, tick in enumerate(axes.get_yticklabels()):
        tick.set_color(_colour(at))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(color="0.92", linewidth=0.6, axis="x")
    axes.set_axisbelow(True)


def _mark(axes: Any, found: Crossover, height: float, colour: str, *, filled: bool) -> None:
    """A dot with its interval; an arrowhead at the edge of the range where the crossover lies beyond it."""
    clip = [min(max(length, found.shortest), found.longest) for length in (found.low, found.at, found.high)]
    axes.plot([clip[0], clip[2]], [height, height], color=colour, linewidth=1.6, solid_capstyle="butt")
    marker = {0.0: "<", math.inf: ">"}.get(found.at, "o")
    face = colour if filled else "white"
    axes.plot([clip[1]], [height], marker=marker, markersize=5.5, color=colour, markerfacecolor=face, clip_on=False)


def _key(figure: Any) -> None:
    from matplotlib.lines import Line2D

    dots: dict[str, Any] = {"linestyle": "none", "color": "0.3", "markersize": 5.5}
    handles = [
        Line2D([], [], marker="o", markerfacecolor="white", label="costs less than materialised softmax from here on", **dots),
        Line2D([], [], marker="o", label="than SDPA", **dots),
        Line2D([], [], marker="<", label="from the shortest length on", **dots),
        Line2D([], [], marker=">", label="never in range", **dots),
        Line2D([], [], color="0.3", linewidth=1.6, label="95 % interval"),
    ]
    title = f"Exponents are fitted to the {FITTED_LENGTHS} longest lengths; shades are interquartile ranges."
    figure.legend(
        handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8.5, title=title, title_fontsize=8.5
    )


def _plain_numbers(axis: Any) -> None:
    """Ticks at 1, 3, 10, 30 and so on, without powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axis.set_major_formatter(FuncFormatter(lambda found, _: f"{found:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def _length_axis(grid: Any, lengths: Sequence[int]) -> None:
    for axes in grid.flat:
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
        axes.set_xticks([], minor=True)
        axes.set_xlim(lengths[0] / 1.12, lengths[-1] * 1.12)
        axes.tick_params(axis="x", labelsize=8)
    for axes in grid[1::2].flat:
        axes.tick_params(axis="x", labelbottom=True)
        axes.set_xlabel("length n", fontsize=8.5)


def _colour(at: int) -> str:
    return COLOURS[at % len(COLOURS)]


def _short(label: str) -> str:
    """The mechanism's name without its options, which the table has."""
    return label.partition("[")[0]
