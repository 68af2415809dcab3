"""Heat map as an SVG picture, drawn without a plotting library and shown without a style sheet."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from attn_zoo.escapes import label, markup, terminal
from attn_zoo.leaderboard.heatmap.model import Cell, HeatMap
from attn_zoo.leaderboard.heatmap.scale import DARK_SHADES, LIGHT_SHADES, level
from attn_zoo.leaderboard.heatmap.words import brief, footnotes, gap, mean, metric, spread, told
from attn_zoo.plotting.theme import GRID, INK, MUTED, PAPER, with_dark_colours

_FONT = "'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
_LETTER = 0.6
"""Average width of a letter relative to the font size, in the widest of the fonts."""
_NAME, _FIGURE, _SMALL, _NOTE = 12.0, 11.5, 8.5, 10.5
"""Font sizes of names, figures, intervals and notes."""
_LONG = 60
"""Greatest number of characters of a name."""
_EDGE, _HEADING = 24.0, 74.0
_ROW, _APART = 20.0, 12.0
"""Height of a row, and the gap before controls and before costs."""
_WIDE, _NARROW, _COST = 66.0, 46.0, 58.0
"""Widths of a score column with and without intervals, and of a cost column."""
_LEAST = 690.0
"""Width that the legend takes."""
_HATCH = (
    '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="5" height="5" fill="{PAPER}"/><path d="M0 0V5" stroke="{MUTED}" stroke-width="1"/></pattern></defs>'
)


def heat_map_svg(found: HeatMap) -> str:
    """Draw the heat map as SVG text, equal for equal maps, that follows the reader's light or dark mode.

    Raises:
        ValueError: the map has no lines.
    """
    if not found.lines:
        raise ValueError("no picture: there are no records; attn-zoo run makes one")
    place = _layout(found)
    parts = (_heading(found), _heads(found, place), _lines(found, place), _chance(found, place), _notes(place))
    body = "\n".join(drawn for part in parts for drawn in part)
    width, height = f"{place.width:.0f}", f"{place.height:.0f}"
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="{_FONT}" style="font-variant-numeric:tabular-nums">\n<title>{markup(_title(found))}</title>\n{_HATCH}\n'
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>\n{body}\n</svg>\n'
    )
    return with_dark_colours(text, _dark_shades())


def _dark_shades() -> str:
    """CSS rules for shaded cells and the text in them in dark mode."""
    pairs = list(zip(LIGHT_SHADES, DARK_SHADES, strict=True))[1:]
    return "".join(
        f'[fill="{light.fill}"]{{fill:{dark.fill}}}.h{at} text{{fill:{dark.text}!important}}'
        for at, (light, dark) in enumerate(pairs, 1)
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """Positions of the parts of the picture, in pixels."""

    left: float
    """Left edge of the first column."""
    cell: float
    """Width of a column of scores."""
    figure: float
    """Right edge of a mean within its column; its interval follows."""
    costs: float
    """Left edge of the first column of costs."""
    rows: tuple[float, ...]
    """Upper edges of the lines."""
    chance: float
    """Upper edge of the line of chance."""
    notes: tuple[str, ...]
    width: float
    height: float


def _layout(found: HeatMap) -> _Layout:
    left = round(_EDGE + max(90.0, max(len(label(line.attention, _LONG)) for line in found.lines) * _NAME * _LETTER + 14))
    several = any(count > 1 for count in found.seeds)
    cell, figure = (_WIDE, 40.0) if several else (_NARROW, 38.0)
    costs = left + cell * len(found.columns) + _APART
    middles = [left + cell * (at + 0.5) for at in range(len(found.columns))]
    middles += [costs + _COST * (at + 0.5) for at in range(len(found.costs))]
    heads = [head * _NAME * _LETTER * math.sqrt(0.5) + 8 for head in map(len, _head_texts(found))]
    at, rows = float(round(_EDGE + _HEADING + max(heads) + 16)), []
    for number, line in enumerate(found.lines):
        at += _APART if number and line.control and not found.lines[number - 1].control else 0
        rows.append(at)
        at += _ROW
    ends = [middle + head for middle, head in zip(middles, heads, strict=True)]
    width = math.ceil(max(*ends, costs + _COST * len(found.costs), _LEAST) + _EDGE)
    notes = tuple(textwrap.wrap(terminal(_said(found, several)), int((width - 2 * _EDGE) / (_NOTE * 0.53))))
    chance = at + 4
    return _Layout(left, cell, figure, costs, tuple(rows), chance, notes, width, chance + _ROW + 26 + 15 * len(notes))


def _title(found: HeatMap) -> str:
    mechanisms = sum(not line.control for line in found.lines)
    return f"{mechanisms} attention mechanisms on {len(found.columns)} task{'' if len(found.columns) == 1 else 's'}"


def _head_texts(found: HeatMap) -> list[str]:
    return [label(head, _LONG) for head in (*(column.title for column in found.columns), *(cost.head for cost in found.costs))]


def _said(found: HeatMap, several: bool) -> str:
    protocols = ", ".join(sorted({column.table.protocol for column in found.columns}))
    intervals = ["±: half of the 95 % interval of the mean."] if several else []
    return " ".join([*footnotes(found), *intervals, f"Protocol {protocols}."])


def _heading(found: HeatMap) -> Iterator[str]:
    """Title, and the legend of shades."""
    y, x, step = _EDGE + 34, _EDGE + 108, 9.0
    yield _text(_EDGE, _EDGE + 14, _title(found), 18, weight=700)
    yield _text(_EDGE, y + 10, "best control", _FIGURE, fill=MUTED)
    yield _frame(x - 25, y, 22, 13)
    for shade in LIGHT_SHADES[1:]:
        yield _rect(x, y, step + 0.5, 13, shade.fill)
        x += step
    yield _text(x + 8, y + 10, "best mechanism of the task", _FIGURE, fill=MUTED)
    yield _rect(x + 188, y, 22, 13, "url(#hatch)")
    yield _text(x + 216, y + 10, "refused or failed", _FIGURE, fill=MUTED)
    yield _text(x + 330, y + 10, "·  not run", _FIGURE, fill=MUTED)


def _heads(found: HeatMap, place: _Layout) -> Iterator[str]:
    """Headings of the columns, and the background that shows as lines between cells."""
    top = place.rows[0]
    for at, column in enumerate(found.columns):
        x = place.left + place.cell * (at + 0.5)
        yield _slanted(x, top - 20, label(column.title, _LONG), MUTED if column.unshaded else INK)
        yield _text(x, top - 6, metric(column), 9.5, fill=MUTED, anchor="middle")
    for number, cost in enumerate(found.costs):
        yield _slanted(place.costs + _COST * (number + 0.5), top - 20, label(cost.head, _LONG), INK)
    for control in (False, True):
        edges = [y for line, y in zip(found.lines, place.rows, strict=True) if line.control == control]
        if edges:
            yield _rect(place.left, edges[0], place.cell * len(found.columns), edges[-1] + _ROW - edges[0], GRID)


def _lines(found: HeatMap, place: _Layout) -> Iterator[str]:
    for line, y in zip(found.lines, place.rows, strict=True):
        fill = MUTED if line.control else INK
        weight = 700 if line.attention == "softmax" else 400
        yield _text(place.left - 10, y + 14, label(line.attention, _LONG), _NAME, anchor="end", fill=fill, weight=weight)
        for at, cell in enumerate(line.cells):
            column = found.columns[at]
            x, missing = place.left + place.cell * at, gap(cell, column.table)
            drawn = (
                _missing(missing, x, y, place.cell)
                if missing
                else _scored(cell, mean(cell, column.table), spread(cell, column.table), x, y, place)
            )
            depth = "" if cell.shade is None else f' data-shade="{cell.shade:.3f}"'
            shade = level(cell.shade or 0.0)
            kind = f"cell h{shade}" if shade else "cell"
            yield f'<g class="{kind}"{depth}><title>{markup(told(line, cell, column))}</title>{drawn}</g>'
        for number, cost in enumerate(line.costs):
            x = place.costs + _COST * (number + 1) - 8
            yield _text(x, y + 14, cost or "–", _FIGURE, anchor="end", fill=fill if cost else MUTED)


def _scored(cell: Cell, figure: str, interval: str, x: float, y: float, place: _Layout) -> str:
    shade = LIGHT_SHADES[level(cell.shade or 0.0)]
    edge, weight = x + place.figure, 700 if cell.leads else 400
    parts = [_rect(x + 0.5, y + 0.5, place.cell - 1, _ROW - 1, shade.fill)]
    parts += [_frame(x + 1.5, y + 1.5, place.cell - 3, _ROW - 3)] if cell.marked else []
    parts += [_text(edge, y + 14, figure, _FIGURE, anchor="end", fill=shade.text, weight=weight)]
    parts += [_text(edge + 2, y + 14, interval, _SMALL, fill=shade.text)] if interval else []
    return "".join(parts)


def _missing(said: str, x: float, y: float, width: float) -> str:
    middle, ground = x + width / 2, PAPER if said == "·" else "url(#hatch)"
    room = 0.0 if said == "·" else len(said) * _SMALL * 0.56 + 6
    under = _rect(middle - room / 2, y + 4, room, _ROW - 8, PAPER) if room else ""
    note = _text(middle, y + 13.2, said, _SMALL if room else _FIGURE, anchor="middle", fill=MUTED)
    return _rect(x + 0.5, y + 0.5, width - 1, _ROW - 1, ground) + under + note


def _chance(found: HeatMap, place: _Layout) -> Iterator[str]:
    y = place.chance + 14
    yield _text(place.left - 10, y, "chance", _NAME, anchor="end", fill=MUTED, slant=True)
    for at, column in enumerate(found.columns):
        said = "–" if column.table.chance is None else brief(column.table.chance, column.table)
        yield _text(place.left + place.cell * at + place.figure, y, said, _FIGURE, anchor="end", fill=MUTED, slant=True)


def _notes(place: _Layout) -> Iterator[str]:
    for at, line in enumerate(place.notes):
        yield _text(_EDGE, place.chance + _ROW + 22 + 15 * at, line, _NOTE, fill=MUTED)


def _rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"/>'


def _frame(x: float, y: float, width: float, height: float) -> str:
    """Outline of the best control."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="none" stroke="{INK}" stroke-width="1.2"/>'


def _text(
    x: float, y: float, said: str, size: float, *, anchor: str = "start", fill: str = INK, weight: int = 400, slant: bool = False
) -> str:
    more = ("" if anchor == "start" else f' text-anchor="{anchor}"') + (f' font-weight="{weight}"' if weight != 400 else "")
    more += ' font-style="italic"' if slant else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}"{more}>{markup(said)}</text>'


def _slanted(x: float, y: float, said: str, fill: str) -> str:
    return f'<text transform="translate({x:g} {y:g}) rotate(-45)" font-size="{_NAME:g}" fill="{fill}">{markup(said)}</text>'
