"""Picture of the heat map, drawn with matplotlib."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from attn_zoo.escapes import label, terminal
from attn_zoo.leaderboard.heatmap import DARK_FROM, NOT_APPLICABLE, NOT_RUN, SHADES, Cell, HeatMap, footnotes, gap
from attn_zoo.plotting.theme import GRID, INK, MUTED, PAPER, save, settings, svg_text, with_dark_colours

_NAME, _FIGURE, _SMALL, _NOTE = 11.5, 11.0, 8.0, 10.0
"""Font sizes in pixels: of names, figures, small figures, and notes."""
_LETTER = 0.62
"""Average width of a letter relative to the font size."""
_ROW, _APART, _EDGE, _FLOPS = 19.0, 9.0, 12.0, 46.0
"""Height of a row, gap between groups, margin, and width of the column of FLOPs."""
_LONG = 44
"""Greatest number of characters of a name."""
_FRAME, _STRIPES = "frame", "//////"
"""Kinds of boxes: the best control's frame, and the hatch of cells that are not applicable."""


def heat_map_svg(found: HeatMap) -> str:
    """Return the heat map as SVG text. The colours follow the reader's light or dark mode. Equal heat maps give equal text.

    Raises:
        ValueError: the heat map has no rows.
    """
    import matplotlib

    with matplotlib.rc_context(settings("heat map", outlined=False)):
        return with_dark_colours(svg_text(_Drawing(found).figure))


def draw_heat_map(found: HeatMap, *paths: Path) -> list[Path]:
    """Write the heat map to each of ``paths``, which end in .svg or .png, and return the paths.

    Raises:
        ValueError: the heat map has no rows.
        OSError: a file cannot be written.
    """
    import matplotlib

    with matplotlib.rc_context(settings("heat map", outlined=False)):
        return save(_Drawing(found).figure, *paths)


class _Drawing:
    """Picture of a heat map, in pixels from the upper left corner."""

    def __init__(self, found: HeatMap) -> None:
        from matplotlib.figure import Figure

        if not found.lines:
            raise ValueError("there are no records to draw. Make some with attn-zoo run")
        self.found = found
        self._boxes: dict[tuple[str, str], list[Any]] = defaultdict(list)
        self._spots: list[tuple[float, float]] = []
        self.heads = [label(column.heading, _LONG) for column in found.columns]
        self.heads += [label(found.flops.head, _LONG)] if found.flops else []
        small = any(cell.small for line in found.lines for cell in line.cells)
        self.cell, self.figure_end = (54.0, 30.0) if small else (40.0, 34.0)
        height = self._lay_out()
        self.figure = Figure(figsize=(self.width / 96, height / 96), facecolor=PAPER)
        self.axes: Any = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set(xlim=(0, self.width), ylim=(height, 0))
        self.axes.set_axis_off()
        self._legend()
        self._headings()
        self._lines()
        self._draw_boxes()

    def _lay_out(self) -> float:
        """Place columns, lines and notes. Return the height of the picture."""
        found = self.found
        left = _EDGE + max(len(label(line.attention, _LONG)) for line in found.lines) * _NAME * _LETTER + 8
        self.xs = [left]
        for one, other in pairwise(found.columns):
            self.xs.append(self.xs[-1] + self.cell + _APART * (one.direction != other.direction))
        self.flops = [self.xs[-1] + self.cell + _APART] if found.flops else []
        self.middles = [x + self.cell / 2 for x in self.xs] + [x + _FLOPS / 2 for x in self.flops]
        slanted = [len(head) * _NAME * _LETTER * 0.71 for head in self.heads]
        self.width = max(690.0, *(x + long for x, long in zip(self.middles, slanted, strict=True))) + _EDGE
        self.top = 102 + max(slanted)
        self.ys, y = [], self.top
        for at, line in enumerate(found.lines):
            y += _APART * bool(at and line.group != found.lines[at - 1].group)
            self.ys.append(y)
            y += _ROW
        self.chance = y + 2
        self.notes = textwrap.wrap(terminal(" ".join(footnotes(found))), int((self.width - 2 * _EDGE) / (_NOTE * 0.55)))
        return y + _ROW + 24 + 14 * len(self.notes)

    def _legend(self) -> None:
        self._text(_EDGE, 8, self.found.title, 17, weight="bold")
        y = 35.0
        self._text(_EDGE, y, "best control", _NOTE, color=MUTED)
        self._box(84, y, 22, 19, PAPER, _FRAME)
        for at, fill in enumerate(SHADES):
            self._box(110 + 14 * at, y, 15, 19, fill)
        self._text(228, y, "best mechanism of the task", _NOTE, color=MUTED)
        looks = (400.0, GRID, "", "not trained"), (500.0, PAPER, _STRIPES, "not applicable"), (612.0, PAPER, "", "not run")
        for x, fill, kind, said in looks:
            self._box(x, y, 22, 19, fill, kind)
            self._text(x + 28, y, said, _NOTE, color=MUTED)
        self._spots.append((623, y + 9.5))

    def _headings(self) -> None:
        """Write slanted titles, a line over the columns of each direction, and metrics."""
        known = self.found.columns
        for at, (x, head) in enumerate(zip(self.middles, self.heads, strict=True)):
            dull = at < len(known) and known[at].unshaded is not None
            look = {"rotation": 45, "rotation_mode": "anchor", "color": MUTED if dull else INK}
            self.axes.text(x - 4, self.top - 38, head, size=_NAME * 0.75, va="bottom", **look)
        for column, x in zip(known, self.middles, strict=False):
            self._text(x, self.top - 17, column.metric, 9, ha="center", color=MUTED)
        for direction, members in groupby(range(len(known)), key=lambda at: known[at].direction):
            inside = [self.xs[at] for at in members]
            start, end = inside[0] + 2, inside[-1] + self.cell - 2
            self.axes.plot([start, end], [self.top - 32] * 2, color=MUTED, linewidth=0.8)
            self._text((start + end) / 2, self.top - 31, direction, 9.5, ha="center", color=MUTED)

    def _lines(self) -> None:
        """Draw the rows, the chance levels and the notes."""
        for line, y in zip(self.found.lines, self.ys, strict=True):
            colour, bold = MUTED if line.control else INK, "bold" if line.attention == "softmax" else "normal"
            self._text(self.xs[0] - 6, y, label(line.attention, _LONG), _NAME, ha="right", color=colour, weight=bold)
            for x, cell in zip(self.xs, line.cells, strict=True):
                self._cell(x, y, cell)
            for x in self.flops:
                self._text(x + _FLOPS - 4, y, line.flops or "–", _FIGURE, ha="right", color=colour if line.flops else MUTED)
        look = {"ha": "right", "color": MUTED, "style": "italic"}
        self._text(self.xs[0] - 6, self.chance, "chance", _NAME, **look)
        for x, column in zip(self.xs, self.found.columns, strict=True):
            self._text(x + self.figure_end, self.chance, "–" if column.chance == "-" else column.chance, _FIGURE, **look)
        for at, note in enumerate(self.notes):
            self._text(_EDGE, self.chance + _ROW + 10 + 14 * at, note, _NOTE, color=MUTED)

    def _cell(self, x: float, y: float, cell: Cell) -> None:
        missing, deep = gap(cell), cell.level
        fill = SHADES[deep - 1] if deep else PAPER if cell.trained else GRID
        self._box(x, y, self.cell, _ROW, fill, _STRIPES if missing == NOT_APPLICABLE else "")
        if cell.marked:
            self._box(x, y, self.cell, _ROW, "none", _FRAME)
        if missing == NOT_RUN:
            self._spots.append((x + self.cell / 2, y + _ROW / 2))
        elif missing and missing != NOT_APPLICABLE:
            self._text(x + self.cell / 2, y, missing, _SMALL, ha="center", color=INK)
        ink = INK if not deep else "#fefefe" if deep > DARK_FROM else "#000000"  # cells have the same colours in dark mode
        weight, style = "bold" if cell.leads else "normal", "normal" if cell.trained else "italic"
        said = "100" if cell.text == "100.0" else cell.text
        self._text(x + self.figure_end, y, said, _FIGURE, ha="right", color=ink, weight=weight, style=style)
        self._text(x + self.figure_end + 2, y + 1, cell.small, _SMALL, color=ink)

    def _box(self, x: float, y: float, width: float, height: float, fill: str, kind: str = "") -> None:
        left, right, top, bottom = x + 0.5, x + width - 0.5, y + 0.5, y + height - 0.5
        self._boxes[fill, kind].append([(left, top), (right, top), (right, bottom), (left, bottom), (left, top)])

    def _draw_boxes(self) -> None:
        """Draw all boxes of one look as one path, to keep the file small."""
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path as Outline

        for (fill, kind), corners in sorted(self._boxes.items(), key=lambda item: item[0][1] == _FRAME):
            outline = Outline.make_compound_path(*(Outline(box, closed=True) for box in corners))
            hatch = kind if kind == _STRIPES else None
            edge = INK if kind == _FRAME else MUTED if hatch else GRID
            wide = 1.2 if kind == _FRAME else 0.5
            self.axes.add_patch(PathPatch(outline, facecolor=fill, edgecolor=edge, linewidth=wide, hatch=hatch, clip_on=False))
        if self._spots:
            self.axes.plot(*zip(*self._spots, strict=True), marker="o", markersize=1.2, linestyle="none", color=MUTED)

    def _text(self, x: float, y: float, said: str, size: float, **look: Any) -> None:
        """Write text into a row whose top is at the height ``y``."""
        if said:
            self.axes.text(x, y + _ROW / 2, said, size=size * 0.75, va="center_baseline", **look)
