"""Heat map for a terminal: a table at most a hundred characters wide, shaded where there is colour."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from rich.console import Console
from rich.text import Text

from attn_zoo.escapes import terminal
from attn_zoo.leaderboard.heatmap.model import Cell, Column, HeatMap
from attn_zoo.leaderboard.heatmap.scale import DARK_SHADES, LIGHT_SHADES, level
from attn_zoo.leaderboard.heatmap.words import brief, footnotes, gap, mean, metric, spread
from attn_zoo.leaderboard.metrics import is_share
from attn_zoo.leaderboard.text import lines
from attn_zoo.terminal import COLUMNS, columns

_NAME = 20
"""Greatest number of letters of a mechanism's name."""
_DETAILS = ((1, True, 10), (1, False, 5), (0, False, 3))
"""Levels of detail: decimals, whether intervals are shown, letters of a task's name; the first at which all columns fit is used."""
_GAPS = {"refused": "ref", "diverged": "div", "time-out": "t/o", "failed": "err"}


@dataclass(frozen=True, slots=True)
class _Strip:
    """Column as it is written: its heading, and a cell for every line and for chance."""

    head: str
    cells: tuple[Text, ...]

    @property
    def width(self) -> int:
        return 1 + max(len(self.head), *(len(cell) for cell in self.cells))


def colours_here() -> str | None:
    """Colour system of the standard output; None where it is not a terminal, or colours are disabled (NO_COLOR)."""
    console = Console()
    return None if console.no_color or not console.is_terminal else console.color_system


def heat_map_text(found: HeatMap, colours: str | None = None) -> str:
    """Render the heat map as lines that fit the terminal; columns that do not fit side by side continue beneath.

    Without ``colours``, ``*`` marks the best rows of a task, and ``<`` rows no better than its best control.

    Args:
        colours: colour system of rich: ``truecolor``, ``256``, ``standard``, ``windows``; None for plain text.
    """
    width = min(columns(), COLUMNS)
    name_width = min(_NAME, max(len(line.attention) + 4 * line.control for line in found.lines))
    several = any(count > 1 for count in found.seeds)
    heads: list[str] = []
    blocks: list[list[_Strip]] = []
    for places, intervals, letters in _DETAILS:
        heads = _heads(found, letters)
        blocks = _blocks(_strips(found, heads, places, intervals and several, colours is not None), width - name_width)
        if len(blocks) == 1:
            break
    out = io.StringIO()
    system = cast("Literal['standard', '256', 'truecolor', 'windows'] | None", colours)
    console = Console(file=out, width=width, color_system=system, force_terminal=colours is not None, legacy_windows=False)
    for block in blocks:
        for line in _written(found, block, name_width):
            console.print(line, no_wrap=True, crop=False)
        console.print()
    text = "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n"))
    notes = footnotes(found, "Bold" if colours else "*")
    if not colours:
        notes.insert(2, "<: no better than the best control of its task.")
    gaps = {gap(cell, column.table) for line in found.lines for cell, column in zip(line.cells, found.columns, strict=True)}
    notes += [f"{', '.join(f'{_GAPS[word]}: {word}' for word in sorted(gaps & _GAPS.keys()))}."] if gaps & _GAPS.keys() else []
    legend = [terminal(line if len(line) <= width else f"{line[: width - 1]}…") for line in _legend(found, heads)]
    return "\n\n".join(["Test scores", text, "\n".join(legend), lines(notes, "terminal")])


def _strips(found: HeatMap, heads: Sequence[str], places: int, intervals: bool, coloured: bool) -> list[_Strip]:
    """Columns of tasks, of the average where there is one, and of costs."""
    shades = LIGHT_SHADES if _light_background() else DARK_SHADES

    def score(cell: Cell, column: Column) -> Text:
        missing = gap(cell, column.table)
        mark = "" if coloured else "*" if cell.leads else "<" if cell.shade == 0 else " "
        said = _GAPS.get(missing, missing) if len(missing) > 1 else (missing or mean(cell, column.table, places)) + mark
        said += f" {spread(cell, column.table):<5}" if intervals else ""
        if cell.shade is None or not coloured:
            return Text(said, "bold" if cell.leads and coloured else "")
        shade = shades[level(cell.shade)]
        return Text(said, f"{'bold ' if cell.leads else ''}{shade.text} on {shade.fill}")

    end = ("" if coloured else " ") + (" " * 6 if intervals else "")
    made = []
    for at, (column, head) in enumerate(zip(found.columns, heads, strict=True)):
        chance = "-" if column.table.chance is None else brief(column.table.chance, column.table, places)
        made.append(_Strip(head, (*(score(line.cells[at], column) for line in found.lines), Text(chance + end))))
    if found.means.reason is None and places:
        share = next(column.table for column in found.columns if is_share(column.table))
        chance = "-" if found.means.chance is None else brief(found.means.chance, share, places)
        own = ["-" if line.average is None else brief(line.average.mean, share, places) for line in found.lines]
        made.append(_Strip("mean", tuple(map(Text, [*own, chance]))))
    for at, cost in enumerate(found.costs):
        made.append(_Strip(cost.cost, tuple(Text(line.costs[at] or "-") for line in found.lines) + (Text(),)))
    return made


def _blocks(strips: Sequence[_Strip], room: int) -> list[list[_Strip]]:
    """Divide columns into groups that fit side by side."""
    blocks: list[list[_Strip]] = [[]]
    for strip in strips:
        if blocks[-1] and sum(other.width for other in blocks[-1]) + strip.width > room:
            blocks.append([])
        blocks[-1].append(strip)
    return blocks


def _written(found: HeatMap, block: Sequence[_Strip], name_width: int) -> Iterator[Text]:
    yield Text(" " * name_width + "".join(strip.head.rjust(strip.width) for strip in block))
    names = [(terminal(line.attention), " (c)" if line.control else "") for line in found.lines] + [("chance", "")]
    controls = next((at for at, line in enumerate(found.lines) if line.control), len(found.lines))
    for at, (name, mark) in enumerate(names):
        if at == controls:
            yield Text()
        room = name_width - len(mark)
        label = name if len(name) <= room else f"{name[: room - 1]}…"
        line = Text(f"{label}{mark}".ljust(name_width))
        for strip in block:
            cell = strip.cells[at].copy()
            cell.pad_left(strip.width - len(cell))
            line.append_text(cell)
        yield line


def _heads(found: HeatMap, letters: int) -> list[str]:
    """Headings of columns: the first letters of each task's name, the last one replaced by a number where several are equal."""
    heads = [terminal(str(column.table.task["name"])).replace("_", "")[:letters] for column in found.columns]
    return [
        head if heads.count(head) == 1 else f"{head[: letters - 1]}{heads[: at + 1].count(head)}" for at, head in enumerate(heads)
    ]


def _legend(found: HeatMap, heads: Sequence[str]) -> list[str]:
    room = max(map(len, heads))
    return [
        f"{head:<{room}}  {column.title}, {metric(column)}; {column.table.data_title}"
        for head, column in zip(heads, found.columns, strict=True)
    ]


def _light_background() -> bool:
    """Tell whether the terminal says that its background is light: the last number of COLORFGBG, set by rxvt and others."""
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
