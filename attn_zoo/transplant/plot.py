"""Plot of agreement with the teacher against the cost of attention, with one panel per stage. A line shows one mechanism with
one initialisation, and its points differ in one option."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from attn_zoo.grouping import grouped
from attn_zoo.plotting.theme import GRID, INK, MUTED, PAPER, SERIES, save, settings
from attn_zoo.transplant.experiment import STAGES
from attn_zoo.transplant.table import WORDS, Row, rows_of

_MARKERS = ("o", "s", "^", "D", "P", "X", "v")


def plot_transplant(found: Mapping[str, Any], path: Path) -> None:
    """Write the plot of a transplant's record to a file. Equal records give equal SVG files, byte for byte.

    Raises:
        ValueError: the record has no result.
    """
    rows = [row for row in rows_of(found) if row.values("swap", "spearman")]
    if not rows:
        raise ValueError("there is nothing to plot, because no mechanism has a score. Leave plot= out")
    import matplotlib
    from matplotlib.figure import Figure

    groups = grouped(((row["attention"], row["init"], row["dial"]), row) for row in rows)
    lines = [sorted(line, key=lambda row: row.share) for line in groups.values()]
    with matplotlib.rc_context(settings("transplant")):
        figure = Figure(figsize=(11.5, 5.3))
        title = "What of a trained encoder's similarities is kept when its attention is replaced"
        figure.text(0.012, 0.975, title, va="top", fontsize=12, fontweight="bold")
        caption = textwrap.fill(_caption(found), width=190)
        figure.text(0.012, 0.92, caption, va="top", fontsize=8.5, color=MUTED, linespacing=1.4)
        panels = figure.subplots(1, len(STAGES), sharex=True, sharey=True)
        figure.subplots_adjust(left=0.06, right=0.985, top=0.78, bottom=0.27, wspace=0.06)
        for panel, stage in zip(panels, STAGES, strict=True):
            _draw(panel, stage, lines)
        _axes(panels, rows)
        figure.legend(handles=panels[0].get_legend_handles_labels()[0], loc="lower center", ncols=min(3, len(lines) + 1))
        save(figure, path)


def _caption(found: Mapping[str, Any]) -> str:
    teacher, setting, data = found["teacher"], found["setting"], found["data"]
    bars = "; bars from the lowest to the highest seed" if len({point["seed"] for point in found["points"]}) > 1 else ""
    return (
        f"{teacher['name']}, weights {teacher['weights']}, {teacher['layers']} layers; all pairs of {setting['tests']} passages of "
        f"{setting['length']} tokens of {data['test']}; learned from {setting['passages']} of {', '.join(data['train'])}{bars}"
    )


def _draw(panel: Any, stage: str, lines: Sequence[Sequence[Row]]) -> None:
    """Draw all lines of one stage. Controls and mechanisms without FLOPs are horizontal lines."""
    inits = len({line[0]["init"] for line in lines if line[0]["init"]}) > 1
    panel.axhline(1.0, color=INK, linewidth=1.2, label="teacher (softmax)")
    coloured = 0
    for line in lines:
        first, measured = line[0], [row for row in line if row.values(stage, "spearman")]
        colour, marker = (MUTED, "") if first["control"] else (SERIES[coloured % len(SERIES)], _MARKERS[coloured % len(_MARKERS)])
        coloured += not first["control"]
        if not measured:
            continue
        name = first["label"] if first["dial"] is None or len(line) == 1 else f"{first['attention']}, {first['dial']}"
        name = f"{name}, init {first['init']}" if first["init"] and inits else name
        if marker and first.share:
            _draw_curve(panel, stage, measured, name, colour, marker)
        else:
            words = f"{name} (no matrix product)" if marker else f"{name} (control)"
            height = fmean(measured[0].values(stage, "spearman"))
            panel.axhline(height, color=colour, linewidth=1.1, linestyle=(0, (4, 3)), label=words)
    panel.set_title(WORDS[stage].capitalize(), fontsize=10, loc="left")
    panel.grid(color=GRID, linewidth=0.6)


def _draw_curve(panel: Any, stage: str, line: Sequence[Row], name: str, colour: str, marker: str) -> None:
    """Draw a line over the cost, with bars from the lowest to the highest seed."""
    scores = [row.values(stage, "spearman") for row in line]
    places, heights = [row.share for row in line], [fmean(values) for values in scores]
    reach = [  # clamped to 0: rounding may move the mean of equal numbers beyond them
        [max(0.0, height - min(values)) for height, values in zip(heights, scores, strict=True)],
        [max(0.0, max(values) - height) for height, values in zip(heights, scores, strict=True)],
    ]
    style: dict[str, Any] = {"linewidth": 1.4, "elinewidth": 1.0, "capsize": 2.5, "zorder": 3}
    style |= {"markersize": 5.5, "markerfacecolor": PAPER, "markeredgewidth": 1.3}
    panel.errorbar(places, heights, yerr=reach, color=colour, marker=marker, label=name, **style)
    small: dict[str, Any] = {"xytext": (5, 5), "textcoords": "offset points", "fontsize": 7, "color": colour}
    for row, *place in zip(line, places, heights, strict=True):
        if row["dial"] is not None:
            panel.annotate(str(row["options"][row["dial"]]), place, **small)


def _axes(panels: Any, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    shares = sorted({round(row.share, 1) for row in rows if not row["control"] and row.share}) or [100.0]
    ticks: list[float] = []
    for share in shares:
        if not ticks or share > 1.2 * ticks[-1]:  # a fifth apart, so that labels do not overlap
            ticks.append(share)
    panels[0].set_ylabel("Spearman's correlation with the teacher", fontsize=9)
    low = min(0.0, *(value for row in rows for stage in STAGES for value in row.values(stage, "spearman")))
    for panel in panels:
        panel.set_xscale("log")
        panel.set_xlim(shares[0] / 1.5, max(100.0, shares[-1]) * 1.5)
        panel.xaxis.set_major_locator(FixedLocator(ticks))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xticklabels([f"{share:g}" for share in ticks])
        panel.set_ylim(low - 0.02, 1.06)
        panel.set_xlabel("attention FLOPs, % of softmax's", fontsize=9)
