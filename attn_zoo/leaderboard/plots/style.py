"""How a figure looks: one colour an attention, one marker an implementation, the same in every plot of a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_zoo.leaderboard.render.text import is_share, short, unit
from attn_zoo.leaderboard.rows import Table

INK = "#1b1f24"
MUTED = "#69707d"
GRID = "#e4e7eb"
PAPER = "#ffffff"
SERIES = ("#1a2fcf", "#2e9fb8", "#ee6325", "#b45cf0", "#9c2a17", "#5c1a73")
"""Told apart with red-green and blue-yellow blindness, and each at least 3 : 1 against white. More attentions begin anew;
every series is named beside its points, too."""
DARK = {
    INK: "#eef1f5",
    MUTED: "#9aa4b2",
    GRID: "#2c323b",
    PAPER: "#14171c",
    **dict(zip(SERIES, ("#5f84ff", "#5fd6e6", "#ff9a4d", "#d3a6ff", "#d8644d", "#b25cd2"), strict=True)),
}
"""The same for a dark page."""
SIZE = (4.7, 3.5)
"""Inches of one figure."""
_MARKERS = ("o", "^", "s", "D", "v", "P")


@dataclass(frozen=True, slots=True)
class Style:
    """Colours and markers for all figures of the same tables."""

    colours: Mapping[str, str]
    """By attention."""
    markers: Mapping[str, str]
    """By implementation; eager's is a circle."""
    shapes: Mapping[str, str]
    """Markers by attention, where implementations are no matter; no two attentions share colour and shape until 36 have them."""


def style_of(tables: Iterable[Table]) -> Style:
    """Softmax is drawn in ink, controls in grey, each other attention in a colour by its place in the alphabet, those with several
    settings in a table first, as they are drawn as curves side by side."""
    tables = list(tables)
    rows = [row for table in tables for row in table.rows]
    several = {name for table in tables for name, count in Counter(row.attention for row in table.rows).items() if count > 1}
    named = {row.attention for row in rows if not row.control and row.attention != "softmax"}
    others = sorted(named, key=lambda name: (name not in several, name))
    colours = {row.attention: MUTED for row in rows if row.control} | {"softmax": INK}
    colours |= {name: SERIES[at % len(SERIES)] for at, name in enumerate(others)}
    shapes = {name: _MARKERS[(at + at // len(SERIES)) % len(_MARKERS)] for at, name in enumerate(others)}
    kinds = ["eager", *sorted({row.provenance.implementation for row in rows} - {"eager"})]
    return Style(colours, {name: _MARKERS[at % len(_MARKERS)] for at, name in enumerate(kinds)}, {"softmax": "*"} | shapes)


def settings(name: str, *, outlined: bool) -> dict[str, Any]:
    """matplotlib's settings for the figure ``name``: the same figure is the same file, and two share no ids.

    Args:
        outlined: letters as outlines, which look alike everywhere; else as text, which is small and can be searched.
    """
    return {
        "font.family": "DejaVu Sans",  # ships with matplotlib, so that every machine lays out alike
        "font.size": 9,
        "svg.hashsalt": f"attn-zoo {name}",
        "svg.fonttype": "path" if outlined else "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.axisbelow": True,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "legend.frameon": False,
        "legend.fontsize": 8,
    }


def scale_of(table: Table) -> float:
    """What a score is multiplied by before it is drawn: shares are shown in per cent."""
    return 100.0 if is_share(table) else 1.0


def score_axis(table: Table, split: str, lower: str = "lower is better") -> str:
    """Label of an axis of scores, with ``lower`` where less is better."""
    return f"{split} {table.task['metric']}{unit(table)}" + ("" if table.higher_is_better else f", {lower}")


def counted(value: float, _: Any = None) -> str:
    """A tick of an axis of counts: ``2.5 M``."""
    return short(value)


def measured(value: float, _: Any = None) -> str:
    """A tick of an axis whose unit its label tells: ``1,200``."""
    return f"{value:,.6g}"


def limits(values: Sequence[float], low: float = 0.08, high: float = 0.08) -> tuple[float, float]:
    """Ends of an axis that leaves room on both sides, in shares of what it spans."""
    least, most = min(values), max(values)
    span = (most - least) or abs(most) or 1.0
    return least - low * span, most + high * span
