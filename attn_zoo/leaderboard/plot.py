"""Plots of scores against a cost. Each task has a panel, and each mechanism that ran with several options has a curve."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from attn_zoo.escapes import label, terminal
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.compare import comparable, cost_of
from attn_zoo.leaderboard.heat_picture import draw_heat_map
from attn_zoo.leaderboard.heatmap import heat_map
from attn_zoo.leaderboard.metrics import is_share, style, unit
from attn_zoo.leaderboard.statistics import Estimate, seed_count
from attn_zoo.leaderboard.table import COUNTED, Row, Table, titles
from attn_zoo.plotting.theme import INK, MARKERS, MUTED, SERIES, plain, save, settings, svg_text, with_dark_colours
from attn_zoo.records.record import bounds
from attn_zoo.terminal import short

COLUMNS, PANELS = 3, 9
"""Greatest number of panels side by side, and in one picture."""
NAMED = 12
"""Greatest number of mechanisms with a colour and a marker of their own; others are grey dots."""
_WIDTH, _HEIGHT = 2.95, 2.7
"""Width and height of a panel in inches."""
_LOGARITHMIC_FROM = 4.0
"""An axis is logarithmic if the largest cost is at least this many times the smallest."""
_SIZES = {"*": 8.0, ".": 4.0}
"""Sizes of the markers whose size is not the default."""
Look = tuple[str, str]
"""Colour and marker of a mechanism."""


@dataclass(frozen=True, slots=True)
class CostAxis:
    """Cost that a plot shows on its horizontal axis."""

    name: str
    """Name in file names."""
    label: str
    """Label of the axis, with the unit."""
    of: Callable[[Row], float | None]
    """Function that returns the cost of a row, or None if the cost is not known."""
    source: str
    """How the costs were found: counted, or measured on which machine. If empty, they were measured on the machines of the
    records."""
    form: Callable[..., str] = plain
    """Function that formats the number at a tick."""


def _recorded(row: Row, cost: str) -> float | None:
    value = cost_of(row, cost)
    return None if value is None else value / (2**20 if cost == "memory" else 1)


_COUNT = "counted, the same on every machine"
AXES = {
    name: CostAxis(name, said, partial(_recorded, cost=name), _COUNT * (name in COUNTED), short if name in COUNTED else plain)
    for name, said in (
        ("FLOPs", "FLOPs of a forward pass, per example"),
        ("time", "training time (s)"),
        ("memory", "peak memory of a step (MiB)"),
        ("parameters", "parameters"),
    )
}
"""Costs that records hold, by name."""
Panel = tuple[Table, CostAxis]


def draw(tables: Sequence[Table], folder: Path, not_causal: Collection[str] = ()) -> list[Path]:
    """Draw the heat map and one plot of scores against each cost, each as PNG and SVG in ``folder``. Return the paths of the files.

    Existing files are replaced.

    Args:
        not_causal: as in ``heat_map``.

    Raises:
        ValueError: there is nothing to draw.
        OSError: the folder cannot be written.
    """
    if not tables:
        raise ValueError("there are no records to plot. Make some with attn-zoo run")
    folder.mkdir(parents=True, exist_ok=True)
    files = draw_heat_map(heat_map(tables, not_causal), folder / "heatmap.png", folder / "heatmap.svg")
    for axis in AXES.values():
        panels = panels_of(tables, [axis])
        for first in range(0, len(panels), PANELS):
            number = f"-{first // PANELS + 1}" * (len(panels) > PANELS)
            files += write(panels[first : first + PANELS], folder / f"cost-{axis.name.lower()}{number}")
    return files


def panels_of(tables: Sequence[Table], axes: Sequence[CostAxis]) -> list[Panel]:
    """Return pairs of a table and a cost, in the order of the tables.

    A pair is left out if no row of the table has both a score and the cost.
    """
    return [(table, axis) for table in tables for axis in axes if any(row.test and axis.of(row) for row in table.rows)]


def write(panels: Sequence[Panel], stem: Path) -> list[Path]:
    """Draw the panels as one picture, write it to ``stem``.png and ``stem``.svg, and return these paths."""
    import matplotlib

    with matplotlib.rc_context(settings(stem.name)):
        return save(_figure(panels), stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg"))


def plot_svg(panels: Sequence[Panel]) -> str:
    """Return the panels as one picture in SVG. Letters are text, not outlines."""
    import matplotlib

    with matplotlib.rc_context(settings("cost", outlined=False)):  # letters as outlines would make the file larger
        return with_dark_colours(svg_text(_figure(panels)))


def curves_of(table: Table, axis: CostAxis) -> list[list[Row]]:
    """Return the rows of a table that have a score and a cost, grouped into curves. Controls are left out.

    The rows of a curve have the same mechanism and implementation group, and differ in their options. If they differ only in
    one numeric option, they are sorted by this option. Otherwise they are sorted by the cost. A row with options found by a
    search is a curve by itself.
    """
    known = [row for row in table.rows if row.test and not row.control and axis.of(row)]
    searched = [row for row in known if any(key.startswith("attention.") for key in row.tuned)]
    joined = grouped(((row.attention, row.block), row) for row in known if row not in searched).values()
    return [*(_in_order(rows, axis) for rows in joined), *([row] for row in searched)]


def looks(tables: Iterable[Table]) -> Mapping[str, Look]:
    """Return the colour and marker of each mechanism.

    Softmax is a black star. Up to ``NAMED`` other mechanisms have a colour and marker of their own: Linformer, then mechanisms
    with several rows on a task, mechanisms on a Pareto front, and those with the best scores. All remaining mechanisms are grey
    dots.
    """
    places: dict[str, list[tuple[bool, bool, float]]] = {}
    for table in tables:
        counts = grouped((row.attention, row) for row in table.rows if not row.control)
        for name, rows in counts.items():
            place = table.rows.index(rows[0]) / len(table.rows)
            places.setdefault(name, []).append((len(rows) == 1, not any(row.fronts for row in rows), place))
    means = {name: tuple(sum(part) / len(part) for part in zip(*found, strict=True)) for name, found in places.items()}
    order = sorted(places, key=lambda name: (name != "linformer", *means[name]))
    named = [name for name in order if name != "softmax"][:NAMED]
    count = len(SERIES)
    found = {name: (SERIES[at % count], MARKERS[(at + at // count) % len(MARKERS)]) for at, name in enumerate(named)}
    return {**dict.fromkeys(places, (MUTED, ".")), **found, "softmax": (INK, "*")}


def _figure(panels: Sequence[Panel]) -> Any:
    from matplotlib.figure import Figure

    tables = [table for table, _ in panels]
    names = dict(zip({id(table): table for table in tables}, titles(list({id(t): t for t in tables}.values())), strict=True))
    known = looks({id(table): table for table in tables}.values())
    kinds = len({axis.name for _, axis in panels})
    columns = min(kinds if 1 < kinds <= COLUMNS else COLUMNS, len(panels))
    lines = math.ceil(len(panels) / columns)
    width = max(columns, 2) * _WIDTH
    said = textwrap.wrap(terminal(_caption(panels)), int(17.5 * width))
    drawn = [name for name in known if known[name] != (MUTED, ".") and any(row.attention == name for t in tables for row in t.rows)]
    entries = math.ceil((len(drawn) + 2) / int(width * 0.75))
    below = 0.15 * entries + 0.115 * len(said) + 0.16
    height = lines * _HEIGHT + below
    figure = Figure(figsize=(width, height))
    for at, (table, axis) in enumerate(panels):
        line, column = divmod(at, columns)
        left, bottom = (column * width / columns + 0.55) / width, 1 - ((line + 1) * _HEIGHT - 0.5) / height
        axes = figure.add_axes((left, bottom, 1 / columns - 0.65 / width, (_HEIGHT - 0.8) / height))
        _draw_panel(axes, table, axis, known)
        axes.set_title(label(names[id(table)], 44), fontsize=8.5, loc="left", weight="bold")
    tight = {"columnspacing": 1.1, "handletextpad": 0.4, "borderpad": 0, "labelspacing": 0.35, "fontsize": 7.5}
    place = (0.01, below / height)
    figure.legend(handles=_legend(drawn, known), loc="upper left", bbox_to_anchor=place, ncols=int(width * 0.75), **tight)
    figure.text(0.014, 0.05 / height, "\n".join(said), fontsize=6.8, color=MUTED, va="bottom", linespacing=1.3)
    return figure


def _legend(drawn: Sequence[str], known: Mapping[str, Look]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: list[Any] = []
    for name in drawn:
        colour, marker = known[name]
        found.append(Line2D([], [], color=colour, marker=marker, markersize=_SIZES.get(marker, 4.5), label=label(name, 30)))
    found.append(Patch(facecolor=MUTED, alpha=0.25, label="best control"))
    return [*found, Line2D([], [], color=MUTED, linewidth=4, alpha=0.3, label="Pareto front")]


def _draw_panel(axes: Any, table: Table, axis: CostAxis, known: Mapping[str, Look]) -> None:
    curves, scale, control = curves_of(table, axis), style(table.task["metric"])[1], table.control_row
    for rows in curves:
        colour, marker = known[rows[0].attention]
        points = [(axis.of(row), row.test.mean * scale, *_interval(row.test, table)) for row in rows if row.test]
        xs, means, lows, highs = zip(*points, strict=True)
        look: dict[str, Any] = {"linewidth": 0.7, "zorder": 2, "alpha": 0.6}
        if marker != ".":
            ends = [[abs(mean - end) for mean, end in zip(means, of, strict=True)] for of in (lows, highs)]
            look = {"linewidth": 1.4, "zorder": 3, "alpha": 1.0, "yerr": ends, "elinewidth": 0.7, "capsize": 1.5}
        axes.errorbar(xs, means, color=colour, marker=marker, markersize=_SIZES.get(marker, 4.5), **look)
    softmax = next((row for rows in curves for row in rows if row.attention == "softmax"), None)
    if softmax and softmax.test:
        axes.axhline(softmax.test.mean * scale, color=INK, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    if control and control.test:
        axes.axhspan(*_interval(control.test, table), color=MUTED, alpha=0.2, linewidth=0, zorder=0.5)
        axes.axhline(control.test.mean * scale, color=MUTED, linewidth=0.9, zorder=0.6)
    rows = [row for rows in curves for row in rows]
    _draw_front(axes, table, axis, rows, scale)
    _scales(axes, table, axis, [axis.of(row) or math.nan for row in rows])


def _draw_front(axes: Any, table: Table, axis: CostAxis, rows: Sequence[Row], scale: float) -> None:
    """Draw a step line along the rows whose mean no cheaper row reaches. If costs are measured, each implementation group has its
    own line. Rows with a failed seed and rows whose recorded costs cannot be compared (see ``comparable``) are left out.
    """
    rows = [row for row in rows if not row.failures and (axis.source or comparable(row, row, axis.name))]
    for block in [None] if axis.source else dict.fromkeys(row.block for row in rows):
        front: list[tuple[float, float]] = []
        members = [row for row in rows if block in (None, row.block)]
        for row in sorted(members, key=lambda row: (axis.of(row) or 0.0, -row.merit)):
            assert row.test is not None, "curves hold rows with a score"
            if not front or row.merit * scale > table.sign * front[-1][1]:
                front.append((axis.of(row) or 0.0, row.test.mean * scale))
        axes.plot(*zip(*front, strict=True), drawstyle="steps-post", color=MUTED, linewidth=4, alpha=0.2, zorder=1.2)


def _scales(axes: Any, table: Table, axis: CostAxis, xs: Sequence[float]) -> None:
    """Set scales, ticks and labels. If lower scores are better, the vertical axis is inverted, so that up is better in every
    panel."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    low, high = axes.get_ylim()
    if is_share(table):
        least, most = (style(table.task["metric"])[1] * end for end in bounds(table.task["metric"]))
        low, high = max(low, least - 3), min(high, most + 3)
    axes.set_ylim((low, high) if table.higher_is_better else (high, low))
    if min(xs, default=0.0) > 0 and max(xs) / min(xs) >= _LOGARITHMIC_FROM:
        axes.set_xscale("log")
        wide = max(xs) / min(xs) >= 30
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0), numticks=8))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(axis.form)
    turned = "" if table.higher_is_better else ", axis turned"
    axes.set_xlabel(axis.label, fontsize=7.5)
    axes.set_ylabel(f"test {label(table.task['metric'], 30)}{unit(table)}{turned}", fontsize=7.5)
    axes.tick_params(labelsize=7)
    axes.grid(linewidth=0.6)


def _interval(found: Estimate, table: Table) -> tuple[float, float]:
    """Return the ends of an interval as drawn, cut at the bounds of the metric."""
    scale, (least, most) = style(table.task["metric"])[1], bounds(table.task["metric"])
    return scale * max(least, found.low), scale * min(most, found.high)


def _differing(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Return the options in which the rows differ, with their values in each row. The number of heads is one of the options."""
    own = [{**row.options, "heads": row.heads} for row in rows]
    known = {name: [found.get(name) for found in own] for name in dict.fromkeys(name for found in own for name in found)}
    return {name: values for name, values in known.items() if len(set(map(str, values))) > 1}


def _in_order(rows: Sequence[Row], axis: CostAxis) -> list[Row]:
    differing = list(_differing(rows).values())
    if len(differing) == 1 and all(isinstance(value, int | float) for value in differing[0]):
        # Sorted by the option, because measured costs are noisy.
        return [row for _, row in sorted(zip(differing[0], rows, strict=True), key=lambda pair: pair[0])]
    return sorted(rows, key=lambda row: (axis.of(row) or 0.0, row.label))


def _caption(panels: Sequence[Panel]) -> str:
    rows = [row for table, axis in panels for curve in curves_of(table, axis) for row in curve]
    parts = [f"Mean of {seed_count(len(row.seeds) for row in rows)}"]
    parts += ["bars: 95 % interval"] if any(row.test and row.test.half_width for row in rows) else []
    parts.append("dotted: softmax; grey band: the best control with its interval")
    unsteady = any(row.unsteady for row in rows) and any(axis.name == "time" and not axis.source for _, axis in panels)
    parts += ["no front of training times that are not compared, because a seed's steps took much longer"] if unsteady else []
    machines = " and ".join(sorted({machine for row in rows for machine in row.block.machines}))
    for axis in dict.fromkeys(axis for _, axis in panels):
        parts.append(f"{axis.label}: {axis.source or f'median over seeds, measured on {machines}'}")
    tuned = sorted({key for row in rows if row.tuning for key in row.tuning.space})
    parts += [f"each setting has its own {', '.join(label(key, 60) for key in tuned)}, chosen on validation"] if tuned else []
    varied = {c[0].attention: ", ".join(_differing(c)) for table, axis in panels for c in curves_of(table, axis) if len(c) > 1}
    curves = grouped((options, name) for name, options in varied.items())
    said = "; ".join(f"{', '.join(names)} over {options}" for options, names in curves.items())
    return f"{'; '.join(parts)}." + (f" A curve joins the settings of a mechanism: {said}." if said else "")
