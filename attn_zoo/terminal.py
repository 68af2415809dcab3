"""Layout of text for a terminal: tables with as many columns as fit, wrapped lines, and short numbers."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from tabulate import tabulate

from attn_zoo.escapes import terminal

# The package rich is not used, because it takes thirty times as long: with it, printing the tables of ``leaderboard
# --reference`` would take a quarter as long as importing PyTorch.

COLUMNS = 100
"""Width in characters if there is no terminal."""
FORMATS = ("terminal", "github")
"""Formats in which ``table`` can write a table of numbers."""
WIDE = "show every column, even if the terminal is too narrow"
"""Help of the option ``--wide``."""
_LEAST = 28
"""Width in characters to which text is wrapped before a column is left out."""
_GAP = 2
"""Characters between two columns."""


def columns() -> int:
    """Return the width of the terminal in characters. If there is no terminal, return ``COLUMNS``."""
    return shutil.get_terminal_size((COLUMNS, 30)).columns


def colours_here() -> str | None:
    """Return the colour system of the standard output, such as ``truecolor``. Return None if the output is not a terminal, or if
    the variable NO_COLOR disables colours."""
    from rich.console import Console  # only on a terminal, because it takes a while

    console = Console()
    return None if console.no_color or not console.is_terminal else console.color_system


def short(count: float, _: Any = None) -> str:
    """Return a count as text with three digits, such as ``2.39 M``. The second argument is ignored, so that matplotlib can call the
    function to format the ticks of an axis."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * size:  # so that 999,600 is 1 M
            return f"{count / size:.3g} {letter}"
    return f"{count:g}"


def byte_count(count: int) -> str:
    """Return a number of bytes as text with three digits, such as ``64 KiB``."""
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:,.0f} {unit}"
    return f"{count} B"


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
    """Return a table as text that is no wider than the terminal. If the table is too wide, optional columns are left out first,
    and then text is wrapped. If the table is still too wide, it is divided into parts, one below the other. Each part has the
    columns before the first number, followed by some of the others.

    Args:
        rows: cells of each row.
        head: names of the columns; empty for a table without a head.
        optional: names of columns that may be left out, in the order of removal. The last line then names the columns that were
            left out.
        right: names of columns that are aligned on the right. If possible, only their heading is wrapped.
        whole: names of columns in which only the heading is wrapped; a table with numbers is divided first.
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
    broken = {at: words[at] if head and head[at] in whole else _word(cells, at) for at in kept}
    parts = [kept] if wide else _parts(kept, flush, broken, width)
    floors = (least, words, broken, dict.fromkeys(kept, 4))
    widths = [natural if wide else _widths({at: natural[at] for at in part}, floors, width) for part in parts]
    text = "\n\n".join(_laid_out(cells, part, each, flush, bool(head)) for part, each in zip(parts, widths, strict=True))
    return text + (f"\n\nleft out: {', '.join(gone)} (--wide shows all)" if gone else "")


def wrap(text: str, width: int | None = None) -> str:
    """Return text with every line wrapped at spaces to the width of the terminal.

    The continuation of a line is aligned with the text after the line's indentation, list mark or first column.
    """
    width = columns() if width is None else width
    return "\n".join(_wrapped(line, width) for line in text.split("\n"))


def paragraph(text: str, width: int, mark: str = "", indent: str = "") -> list[str]:
    """Return the lines of a wrapped paragraph. A number stays on one line with its unit or interval.

    Args:
        mark: text that precedes the paragraph, such as ``- ``.
        indent: text that precedes each further line of the paragraph.
    """
    whole = terminal(text).replace(" %", "\xa0%").replace(" ± ", "\xa0±\xa0")
    made = textwrap.wrap(whole, width, initial_indent=mark, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in made]


def show(text: str, format: str = "terminal") -> None:
    """Print text. On a terminal, long lines are wrapped, unless ``format`` is meant for files."""
    print(wrap(text) if format == "terminal" and sys.stdout.isatty() else text, flush=True)


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], format: str = "terminal", *, left: Collection[int] = (0,)) -> str:
    """Return a table of numbers as text, in Markdown or, by ``fit``, for the terminal.

    Args:
        head: names of the columns.
        rows: cells of each row.
        format: one of ``FORMATS``.
        left: positions of columns with words, which are aligned on the left; all others hold numbers.
    """
    if format == "github":
        align = ["left" if at in left else "right" for at in range(len(head))]
        return tabulate(rows, head, tablefmt="github", disable_numparse=True, colalign=align if rows else None)
    numbers = [name for at, name in enumerate(head) if at not in left]
    return fit(rows, head, right=numbers, whole=numbers)


def shell(command: str, width: int | None = None) -> str:
    """Return a shell command that is wrapped between its words to the width of the terminal. A backslash ends each
    line except the last.
    """
    width = columns() if width is None else width
    rows = [""]
    for word in map(terminal, map(shlex.quote, shlex.split(command))):
        if rows[-1] and len(rows[-1]) + len(word) + 3 > width:
            rows.append(" ")
        rows[-1] += f" {word}" if rows[-1] else word
    return " \\\n".join(rows)


def _wrapped(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    start = re.match(r"\s*(?:- |\* |\S+ {2,})?", line)
    indent = " " * (len(start[0]) if start and len(start[0]) < width // 2 else 0)
    text = line.lstrip()
    own = line.removesuffix(text)  # textwrap drops it before a word that is too long
    return textwrap.fill(text, width, initial_indent=own, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _longest(cells: Sequence[Sequence[str]], at: int) -> int:
    return max((len(row[at]) for row in cells), default=0)


def _word(cells: Sequence[Sequence[str]], at: int) -> int:
    return max((len(word) for row in cells for word in row[at].split()), default=0)


def _total(kept: Sequence[int], widths: Mapping[int, int]) -> int:
    return sum(widths[at] for at in kept) + _GAP * (len(kept) - 1)


def _parts(kept: Sequence[int], flush: Collection[int], least: Mapping[int, int], width: int) -> list[Sequence[int]]:
    """Return the columns of each part into which a table is divided, so that each column has its least width. Without numbers,
    there is one part."""
    numbers = [place for place, at in enumerate(kept) if at in flush]
    if not numbers:
        return [kept]
    first = kept[: max(1, numbers[0])]
    parts = [first]
    for at in kept[len(first) :]:
        if parts[-1] != first and _total([*parts[-1], at], least) > width:
            parts.append(first)
        parts[-1] = [*parts[-1], at]
    return parts


def _widths(natural: Mapping[int, int], floors: Sequence[Mapping[int, int]], width: int) -> dict[int, int]:
    """Return widths of columns that fit together. The widest column shrinks first, to the first floors and, if needed, to the
    next.
    """
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
    """Return cells as lines, wrapped to the widths of their columns, with a rule below the head."""
    lines = []
    for number, row in enumerate(cells):
        broken = [
            [row[at]] if len(row[at]) <= widths[at] else textwrap.wrap(row[at], max(1, widths[at]), break_on_hyphens=False)
            for at in kept
        ]
        for parts in zip_longest(*broken, fillvalue=""):
            padded = [f"{part:{'>' if at in flush else '<'}{widths[at]}}" for at, part in zip(kept, parts, strict=True)]
            lines.append((" " * _GAP).join(padded).rstrip())
        if head and number == 0:
            lines.append((" " * _GAP).join("-" * widths[at] for at in kept))
    return "\n".join(lines)
