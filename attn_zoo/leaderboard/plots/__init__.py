"""Figures of a leaderboard: scores against every cost, over all tasks, as points and as curves, and learning curves."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from attn_zoo.escapes import file_words, label, terminal
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.heat_costs import measured_columns, recorded_columns
from attn_zoo.leaderboard.heatmap import HeatMap, heat_map, numbered
from attn_zoo.leaderboard.notes import seed_count
from attn_zoo.leaderboard.plots import cost, curves, overall, tradeoff
from attn_zoo.leaderboard.plots.axes import MECHANISM, RECORDED, CostAxis
from attn_zoo.leaderboard.plots.style import SIZE, Style, style_of
from attn_zoo.leaderboard.table import COUNTED, Row, Table
from attn_zoo.plotting.theme import MUTED, save, settings, svg_text

__all__ = ["Picture", "draw", "overalls", "pictures", "svg", "tradeoffs", "write"]

_CAPTION = 16
"""Greatest number of lines of a caption."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure that can be drawn."""

    name: str
    """Stem of its files."""
    kind: str
    """``overall``, ``tradeoff``, ``cost`` or ``curve``."""
    along: str
    """Horizontal axis: one of ``COSTS``, ``layer``, ``step``, ``seconds``, ``flops``, or the heading of a cost column."""
    axis: str
    """Horizontal axis in words."""
    title: str
    caption: str
    """Explanation of marks, number of seeds, machine, and rows that are not drawn."""
    size: tuple[float, float]
    """Width and height in inches, without the title."""
    fill: Callable[..., None]
    """Function that draws into a figure in a ``style``, up to the share ``top`` of its height."""
    tables: tuple[Table, ...] = ()


def draw(tables: Sequence[Table], folder: Path, layers: Sequence[CostAxis] = ()) -> list[Path]:
    """Draw every figure into ``folder`` as PNG and as SVG; files of the same names are replaced.

    Args:
        layers: measured costs of a layer, for curves over hyperparameters.

    Raises:
        ValueError: there is nothing to draw.
        OSError: the folder cannot be written.
    """
    columns = [*recorded_columns(tables), *measured_columns(tables)]
    wanted = [*overalls(heat_map(tables, columns)), *tradeoffs(tables, layers)]
    wanted += [picture for number in range(len(tables)) for picture in pictures(tables, number)]
    if not wanted:
        raise ValueError("no plots: no record holds a score with a cost, or a learning curve; record a run first")
    folder.mkdir(parents=True, exist_ok=True)
    style = style_of(tables)
    return [path for picture in _named_apart(wanted) for path in write(picture, style, folder)]


def _named_apart(wanted: Iterable[Picture]) -> Iterator[Picture]:
    """Pictures, of which no two have files of the same name, on file systems that ignore case as well."""
    used: set[str] = set()
    for picture in wanted:
        name, number = picture.name, 2
        while name.lower() in used:
            name, number = f"{picture.name}-{number}", number + 1
        used.add(name.lower())
        yield replace(picture, name=name)


def overalls(found: HeatMap) -> Iterator[Picture]:
    """Figures over all tasks, one for each cost column of the heat map that is in multiples of softmax's."""
    for column in found.costs:
        drawn = overall.points(found, column) if column.cost != "state" else []
        if len(drawn) > 1:
            name = re.sub(r"[^a-z0-9]+", "-", f"overall-{column.head}".lower())
            axis = f"{column.head}{' tokens' if column.length else ''}, relative to softmax"
            fill = partial(overall.draw_overall, drawn=drawn, axis=axis)
            title = f"Score against {column.cost}, all tasks"
            yield Picture(name, "overall", column.head, column.head, title, overall.caption(found, column), overall.SIZE, fill)


def pictures(tables: Sequence[Table], number: int) -> Iterator[Picture]:
    """Figures of table ``number``, one for each cost and each kind of learning curve that at least one of its rows has."""
    table = tables[number]
    stem = file_words(numbered([t.task["name"] for t in tables], "-")[number])
    scored = [row for row in table.rows if row.test]
    for name, (said, _) in cost.AXES.items():
        if told := [row for row in scored if cost.cost_of(row, name) is not None]:
            title = f"{table.task['title']}: {table.task['metric']} against {said}"
            fill, caption = partial(cost.draw_cost, table=table, cost=name), _cost_caption(name, told, scored)
            yield Picture(f"{stem}-{name.lower()}", "cost", name, said, title, caption, SIZE, fill, (table,))
    for name, (said, _) in curves.AXES.items():
        if drawn := curves.curves_of(table, name):
            title = f"{table.task['title']}: validation against {said}"
            fill, caption = partial(curves.draw_curves, table=table, along=name), _curve_caption(name, drawn, table)
            yield Picture(f"{stem}-curve-{name}", "curve", name, said, title, caption, SIZE, fill, (table,))


def tradeoffs(tables: Sequence[Table], layers: Sequence[CostAxis] = ()) -> Iterator[Picture]:
    """Figures of scores as curves against each recorded cost, ``tradeoff.PANELS`` tasks in each, and against costs of a layer, with
    one column for each task; none where no mechanism has several settings.

    Args:
        layers: measured costs of a layer, which are drawn below FLOPs at 4,096 tokens.
    """
    for axis in RECORDED.values():
        drawn = [table for table in tables if tradeoff.curves_of(table, axis)]
        for number, words, part in _parts(drawn, tradeoff.PANELS):
            yield _tradeoff(f"tradeoff-{axis.name.lower()}{number}", axis.name, axis.said, words, part, [axis])
    axes = [MECHANISM, *layers]
    drawn = [table for table in tables if layers and all(tradeoff.curves_of(table, axis) for axis in axes)]
    for number, words, part in _parts(drawn, tradeoff.COLUMNS):
        yield _tradeoff(f"tradeoff-layer{number}", "layer", "costs of a layer", words, part, axes)


def _tradeoff(stem: str, along: str, said: str, words: str, tables: Sequence[Table], axes: Sequence[CostAxis]) -> Picture:
    """Picture with a panel for each table and axis; ``words`` names its tasks where there are several pictures."""
    panels = [(table, axis) for axis in axes for table in tables]
    columns = len(tables) if len(axes) > 1 < len(tables) else tradeoff.columns_of(len(panels))
    fill = partial(tradeoff.draw_tradeoff, panels=panels, columns=columns)
    title, size = f"Score against {said}, by hyperparameter", tradeoff.size_of(len(panels), columns)
    return Picture(stem, "tradeoff", along, said + words, title, _tradeoff_caption(panels), size, fill, tuple(tables))


def _parts(tables: Sequence[Table], most: int) -> Iterator[tuple[str, str, Sequence[Table]]]:
    """Divide tables into parts of at most ``most``; a part has a number and words for its tasks where there are several parts."""
    for first in range(0, len(tables), most):
        part = tables[first : first + most]
        several = len(tables) > most
        yield f"-{first // most + 1}" * several, f", tasks {first + 1} to {first + len(part)}" * several, part


def write(picture: Picture, style: Style, folder: Path) -> list[Path]:
    """Draw the picture once, and write it as PNG and as SVG."""
    import matplotlib

    with matplotlib.rc_context(settings(picture.name)):
        return save(_figure(picture, style, titled=True), folder / f"{picture.name}.png", folder / f"{picture.name}.svg")


def svg(picture: Picture, style: Style) -> str:
    """SVG of the picture with letters as text, without title and background, for a page that shows the caption itself."""
    import matplotlib

    with matplotlib.rc_context(settings(picture.name, outlined=False)):
        figure = _figure(picture, style, titled=False)
        for part in (figure, *figure.axes):
            part.patch.set_visible(False)
        return svg_text(figure)


def _figure(picture: Picture, style: Style, *, titled: bool) -> Any:
    from matplotlib.figure import Figure

    width, height = picture.size
    said = (
        textwrap.wrap(terminal(picture.caption), int(84 * width / SIZE[0]), max_lines=_CAPTION, placeholder=" …") if titled else []
    )
    heading = 0.24 * titled + 0.135 * len(said)
    height += heading
    top = 1 - (heading + 0.12) / height
    figure = Figure(figsize=(width, height))
    if titled:
        left = 0.094 / width
        figure.text(left, 1 - 0.06 / height, label(picture.title, 100), fontsize=9.5, weight="bold", va="top")
        figure.text(left, 1 - 0.25 / height, "\n".join(said), fontsize=7, color=MUTED, va="top", linespacing=1.35)
    picture.fill(figure, style=style, top=top)
    return figure


def _tradeoff_caption(panels: Sequence[tuple[Table, CostAxis]]) -> str:
    found = [curve for table, axis in panels for curve in tradeoff.curves_of(table, axis)]
    rows = [row for curve in found for row in curve.rows]
    parts = [f"One curve per mechanism over its hyperparameter, mean of {_seeds(rows)}"]
    parts += ["bars: 95 % interval"] if any(row.test and row.test.half_width for row in rows) else []
    parts.append("dotted: softmax; grey band: the best control (c) with its interval")
    for axis in dict.fromkeys(axis for _, axis in panels):
        measured = axis.source or f"median over seeds, measured on {_machines(rows)}"
        parts.append(f"{axis.said}: counted, the same on every machine" if axis.counted else measured)
    tuned = sorted({key for row in rows if row.tuning for key in row.tuning.space})
    parts += [f"each setting has its own {', '.join(tuned)}, chosen on validation"] if tuned else []
    varied = grouped((curve.name, curve.varied) for curve in found)
    told = "; ".join(f"{curve}: {' or '.join(dict.fromkeys(said))}" for curve, said in sorted(varied.items()))
    return f"{'; '.join(dict.fromkeys(parts))}. {told}."


def _cost_caption(name: str, told: Sequence[Row], scored: Sequence[Row]) -> str:
    parts = [f"Mean of {_seeds(told)}" + (", bars: 95 % interval" if any(row.test and row.test.half_width for row in told) else "")]
    if name in COUNTED:
        parts.append("counted, the same on every machine")
    else:
        parts.append(f"median over seeds, measured on {_machines(told)}")
    if len(told) > cost.NAMED:
        parts.append(f"at most {cost.NAMED} of {len(told)} rows have names and intervals")
    untold = [row.label for row in scored if row not in told]
    return "; ".join(parts) + (f". Not measured: {', '.join(untold)}." if untold else ".")


def _curve_caption(name: str, drawn: Sequence[Row], table: Table) -> str:
    band = any(point.valid.half_width for row in drawn for point in row.curve)
    parts = [f"Mean of {_seeds(drawn)}" + (", band: 95 % interval" if band else "")]
    if name == "seconds":
        parts.append(f"median over seeds, measured on {_machines(drawn)}")
    if name == "flops" and not all(row.training_flops_counted for row in drawn):
        parts.append("training FLOPs are taken as three forward passes where the records do not count them")
    known = [row for row in table.rows if row.curve]
    return "; ".join(parts) + (f". {len(drawn)} of {len(known)} rows are drawn." if len(known) > len(drawn) else ".")


def _seeds(rows: Iterable[Row]) -> str:
    return seed_count(len(row.seeds) for row in rows)


def _machines(rows: Iterable[Row]) -> str:
    return " and ".join(sorted({machine for row in rows for machine in row.block.machines}))
