"""Layout of text for the terminal: tables with as many columns as fit, and wrapped lines."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from attn_zoo.escapes import terminal

COLUMNS = 100
"""Width in characters where there is no terminal."""
STYLES = {"terminal": "simple", "github": "github"}
"""Formats of tables, with tabulate's name of each."""
WIDE = "every column, however wide the terminal is"
"""Help of the option ``--wide``."""
_LEAST = 28
"""Width in characters to which text is wrapped before a column is left out."""
_GAP = 2
"""Characters between two columns."""
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def columns() -> int:
    """Width of the terminal in characters; ``COLUMNS`` where there is none."""
    return shutil.get_terminal_size((COLUMNS, 30)).columns


def fit(
    rows: Sequence[Sequence[Any]],
    head: Sequence[str] = (),
    *,
    optional: Sequence[str] = (),
    right: Sequence[str] = (),
    whole: Sequence[str] = (),
    wide: bool = False,
    width: int | None = None,
) -> str:
    """Format a table no wider than the terminal: optional columns are left out where there is no room, then text is wrapped.

    Args:
        head: names of the columns; empty for a table without a head.
        optional: names of columns that may be left out, in the order of removal; the last line then names those left out.
        right: names of columns to align on the right, whose cells are not wrapped beneath the head.
        whole: names of further columns whose cells are not wrapped beneath the head.
        wide: keep every column at its full width.
        width: width in characters; None for that of the terminal.
    """
    width = columns() if width is None else width
    kept = list(range(len(head or (rows[0] if rows else ()))))
    cells = [["" if cell is None else terminal(str(cell)) for cell in row] for row in [*([head] if head else []), *rows]]
    flush = {at for at in kept if head and head[at] in right}
    natural = {at: _longest(cells, at) for at in kept}
    fixed = {at for at in kept if head and head[at] in (*right, *whole)}
    words = {at: max(_longest(cells[1:], at), _word(cells[:1], at)) if at in fixed else _word(cells, at) for at in kept}
    least = {at: min(natural[at], max(words[at], _LEAST)) for at in kept}
    gone = []
    for name in () if wide else optional:
        if _total(kept, least) > width:
            kept.remove(list(head).index(name))
            gone.append(name)
    widths = natural if wide else _widths({at: natural[at] for at in kept}, (least, words, dict.fromkeys(kept, 4)), width)
    text = _laid_out(cells, kept, widths, flush, bool(head))
    return text + (f"\n\nleft out: {', '.join(gone)} (--wide shows all)" if gone else "")


def wrap(text: str, width: int | None = None) -> str:
    """Wrap every line at spaces to the width of the terminal; continuations are indented to where the line's text begins."""
    width = columns() if width is None else width
    return "\n".join(_wrapped(line, width) for line in text.split("\n"))


def paragraph(text: str, width: int, mark: str = "", indent: str = "") -> list[str]:
    """Lines of a paragraph after a mark, wrapped such that no figure is parted from its unit or its interval."""
    whole = terminal(text).replace(" %", "\xa0%").replace(" ± ", "\xa0±\xa0")
    made = textwrap.wrap(whole, width, initial_indent=mark, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in made]


def show(text: str, format: str = "terminal") -> None:
    """Print text; on a terminal its tables are fitted to the width, and other lines wrapped, unless ``format`` is one of files."""
    print(fitted(text) if format == "terminal" and sys.stdout.isatty() else text, flush=True)


def fitted(text: str, width: int | None = None) -> str:
    """Fit the tables of a text to the width of the terminal, and wrap its other lines.

    A table whose words or numbers would be broken is split: the remaining columns follow below, with the first ones repeated.
    """
    width = columns() if width is None else width
    text = re.sub(r"^.+\n-+(?:  -+)*\n(?:.+\n?)*", lambda found: _as_markdown(found[0]), text, flags=re.MULTILINE)
    parts = [part.strip("\n") for part in re.split(r"((?:^\|.*\n?)+)", text, flags=re.MULTILINE)]
    return "\n\n".join(_fitted_table(part, width) if part.startswith("|") else wrap(part, width) for part in parts if part)


def _as_markdown(plain: str) -> str:
    """Convert a table whose columns are marked by a rule of dashes below the head to Markdown, with bars between columns."""
    spans = [found.span() for found in re.finditer("-+", plain.split("\n")[1])]
    return "".join(f"| {' | '.join(line[a:b].ljust(b - a) for a, b in spans)} |\n" for line in plain.rstrip("\n").split("\n"))


def _fitted_table(markdown: str, width: int) -> str:
    lines = [re.split(r"(?<!\\)\|", line.strip()[1:-1]) for line in markdown.splitlines()]
    head, rows = [cell.strip() for cell in lines[0]], [[cell.strip() for cell in line] for line in lines[2:]]
    right = [at for at in range(len(head)) if any(line[at].strip() and line[at].startswith("  ") for line in lines[2:])]
    words = {at: _longest(rows, at) if at in right else _word(rows, at) for at in range(len(head))}
    least = {at: max(words[at], _word([head], at)) for at in words}
    first = list(range(min(right, default=1)))
    groups = [first]
    for at in range(len(first), len(head)):
        if groups[-1] != first and _total([*groups[-1], at], least) > width:
            groups.append(first)
        groups[-1] = [*groups[-1], at]
    tables = [
        fit([[row[at] for at in group] for row in rows], [head[at] for at in group], right=[head[at] for at in right], width=width)
        for group in groups
    ]
    return "\n\n".join(tables)


def shell(command: str, width: int | None = None) -> str:
    """Wrap a shell command between its words to the width of the terminal, with a backslash at the end of a continued line."""
    width = columns() if width is None else width
    rows = [""]
    for word in map(terminal, map(shlex.quote, shlex.split(command))):
        if rows[-1] and len(rows[-1]) + len(word) + 3 > width:
            rows.append(" ")
        rows[-1] += f" {word}" if rows[-1] else word
    return " \\\n".join(rows)


def _wrapped(line: str, width: int) -> str:
    if len(_ESCAPE.sub("", line)) <= width:
        return line
    start = re.match(r"\s*(?:- |\* |\S+ {2,})?", line)
    indent = " " * (len(start[0]) if start and len(start[0]) < width // 2 else 0)
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _longest(cells: Sequence[Sequence[str]], at: int) -> int:
    return max((len(line) for row in cells for line in _ESCAPE.sub("", row[at]).split("\n")), default=0)


def _word(cells: Sequence[Sequence[str]], at: int) -> int:
    return max((len(word) for row in cells for word in _ESCAPE.sub("", row[at]).split()), default=0)


def _total(kept: Sequence[int], widths: Mapping[int, int]) -> int:
    return sum(widths[at] for at in kept) + _GAP * (len(kept) - 1)


def _widths(natural: Mapping[int, int], floors: Sequence[Mapping[int, int]], width: int) -> dict[int, int]:
    """Column widths that fit together: the widest column shrinks first, down to the first floors and, if needed, to the next."""
    widths = dict(natural)
    for floor in floors:
        while (over := _total(list(widths), widths) - width) > 0:
            wider = [at for at in widths if widths[at] > floor[at]]
            if not wider:
                break
            widest = max(wider, key=lambda at: widths[at])
            others = [widths[at] for at in wider if widths[at] < widths[widest]]
            widths[widest] = max(floor[widest], widths[widest] - over, min(widths[widest] - 1, max(others, default=0)))
    return widths


def _laid_out(cells: Sequence[Sequence[str]], kept: Sequence[int], widths: Mapping[int, int], flush: set[int], head: bool) -> str:
    """Lay out cells as lines, wrapped to the widths of their columns, with a rule below the head."""
    broken = [[_broken(row[at], widths[at]) for at in kept] for row in cells]
    last = kept[-1] if kept else 0
    lines = []
    for number, row in enumerate(broken):
        for parts in zip_longest(*row, fillvalue=""):
            padded = [_padded(part, widths[at], at in flush, at == last) for at, part in zip(kept, parts, strict=True)]
            lines.append((" " * _GAP).join(padded).rstrip())
        if head and number == 0:
            lines.append((" " * _GAP).join("-" * widths[at] for at in kept))
    return "\n".join(lines)


def _broken(text: str, width: int) -> list[str]:
    lines = text.split("\n")
    if _longest([[text]], 0) <= width:
        return lines
    return [part for line in lines for part in textwrap.wrap(line, max(1, width), break_on_hyphens=False) or [""]]


def _padded(text: str, width: int, right: bool, last: bool) -> str:
    room = " " * (width - len(_ESCAPE.sub("", text)))
    return room + text if right else text + ("" if last else room)
