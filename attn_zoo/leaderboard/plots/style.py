"""Style of a leaderboard's figures: a colour for each attention, a marker for each implementation, the same in all figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_zoo.escapes import label
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.metrics import is_share, style, unit
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.leaderboard.table import Table
from attn_zoo.plotting.theme import INK, MARKERS, MUTED, SERIES
from attn_zoo.records.bounds import bounds

SIZE = (4.7, 3.5)
"""Width and height of one figure in inches."""
FIRST = ("softmax", "linformer")
"""Attentions that are named in every figure, however many rows it shows."""


@dataclass(frozen=True, slots=True)
class Style:
    """Colours and markers for all figures of the same tables."""

    colours: Mapping[str, str]
    """Colour by attention."""
    markers: Mapping[str, str]
    """Marker by implementation, a circle for eager."""
    shapes: Mapping[str, str]
    """Marker by attention, where implementations do not matter."""


def style_of(tables: Sequence[Table]) -> Style:
    """Choose colours: ink for softmax, grey for controls, one each for attentions with several settings, linformer and the best.

    As there are six colours, all further attentions with one setting are grey, and those with several settings share a colour only
    with a mechanism of another shape.
    """
    rows = [row for table in tables for row in table.rows]
    several = {name for table in tables for name, count in Counter(row.attention for row in table.rows).items() if count > 1}
    ranked = [(row, at / len(table.rows)) for table in tables for at, row in enumerate(table.rows)]
    places = grouped((row.attention, place) for row, place in ranked if not row.control and row.attention != "softmax")
    names = sorted(places, key=lambda name: (name not in several, name != "linformer", sum(places[name]) / len(places[name]), name))
    coloured = names[: max(len(SERIES), len(several & set(names)))]
    colours = {row.attention: MUTED for row in rows} | {"softmax": INK}
    colours |= {name: SERIES[at % len(SERIES)] for at, name in enumerate(coloured)}
    shapes = {name: MARKERS[(at + at // len(SERIES)) % len(MARKERS)] for at, name in enumerate(names)}
    kinds = ["eager", *sorted({row.implementation for row in rows} - {"eager"})]
    return Style(colours, {name: MARKERS[at % len(MARKERS)] for at, name in enumerate(kinds)}, {"softmax": "*"} | shapes)


def scale_of(table: Table) -> float:
    """Factor of a score before it is drawn: shares are shown in per cent."""
    return style(table.task["metric"])[1]


def interval(found: Estimate, table: Table) -> tuple[float, float]:
    """Ends of an estimate's interval as drawn, within the bounds of the metric."""
    scale, (least, most) = scale_of(table), bounds(table.task["metric"])
    mean, spread = found.mean * scale, (found.half_width or 0.0) * scale
    return max(scale * least, mean - spread), min(scale * most, mean + spread)


def near_bounds(table: Table, low: float, high: float, most: float = 101.5) -> tuple[float, float]:
    """Ends of an axis of scores, cut where they lie far beyond 0 or 100 % of a share."""
    if not is_share(table):
        return low, high
    return max(low, scale_of(table) * bounds(table.task["metric"])[0] - 3.0), min(high, most)


def bar(found: Estimate, table: Table) -> tuple[list[float], list[float]]:
    """Lengths of an error bar below and above the mean, as matplotlib takes them."""
    mean, (low, high) = found.mean * scale_of(table), interval(found, table)
    return [mean - low], [high - mean]


def score_axis(table: Table, split: str, lower: str = "lower is better") -> str:
    """Label of an axis of scores, with ``lower`` where less is better."""
    return f"{split} {label(table.task['metric'], 40)}{unit(table)}" + ("" if table.higher_is_better else f", {lower}")


def limits(values: Sequence[float], low: float = 0.08, high: float = 0.08) -> tuple[float, float]:
    """Ends of an axis that leaves room on both sides, in shares of its span."""
    least, most = min(values), max(values)
    span = (most - least) or abs(most) or 1.0
    return least - low * span, most + high * span
