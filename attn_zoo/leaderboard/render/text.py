"""Formatting of figures, names and tables as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from attn_zoo.escapes import escaped
from attn_zoo.grouping import grouped
from attn_zoo.leaderboard.metrics import SHARES, style
from attn_zoo.leaderboard.rows import Row, Table
from attn_zoo.leaderboard.statistics import Estimate
from attn_zoo.plotting.theme import short
from attn_zoo.terminal import fit, wrap

_STYLES = {"github": "github", "latex": "latex_booktabs"}
_TEXT = ("attention", "task", "dominated by")
"""Columns that are aligned to the left."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Table as text: title, heads and cells."""

    title: str
    head: Sequence[str]
    body: Sequence[Sequence[str]]
    optional: Sequence[str] = ()
    """Headings of columns that a narrow terminal leaves out, in the order in which they are left out."""


def tabulated(grid: Grid, format: str, wide: bool = False) -> str:
    """Format a table under its title; empty without rows.

    Args:
        wide: show every column in the terminal, however narrow it is.
    """
    if not grid.body:
        return ""
    title, head, *body = ([escaped(cell, format) for cell in row] for row in ([grid.title], grid.head, *grid.body))
    if format == "terminal":
        right = [name for name in head if name not in _TEXT]
        optional = [name for name in grid.optional if name in head]
        return f"{wrap(title[0])}\n\n{fit(body, head, optional=optional, right=right, wide=wide)}"
    align = ["left" if name in _TEXT else "right" for name in head]
    text = tabulate(body, head, tablefmt=_STYLES[format], disable_numparse=True, colalign=align)  # escapes LaTeX's characters
    if format == "latex":
        return f"% {title[0]}\n{text}"
    return f"**{title[0]}**\n\n{text}"


def row_lines(said: Iterable[tuple[str, str]]) -> list[str]:
    """Lines ``row, row: text`` from labels of rows and texts about them, one for each text."""
    return [f"{', '.join(labels)}: {text}" for text, labels in grouped((text, label) for label, text in said).items()]


def seed_count(counts: Iterable[int]) -> str:
    """Numbers of seeds of several rows: ``3 seeds``, ``1 to 3 seeds``."""
    known = sorted(set(counts))
    if not known:
        return "no seed"
    if len(known) > 1:
        return f"{known[0]} to {known[-1]} seeds"
    return "one seed" if known == [1] else f"{known[0]} seeds"


def spent(cost: str, amount: float | None) -> str:
    """Format an amount of a cost with its unit; ``-`` where there is none."""
    if amount is None:
        return "-"
    return f"{seconds(amount)} s" if cost == "time" else f"{short(amount)}FLOPs" if cost == "FLOPs" else mebibytes(amount)


def lines(notes: Sequence[str], format: str) -> str:
    """Format notes as a list, one on each line; for the terminal wrapped to its width."""
    mark = "%" if format == "latex" else "-"
    text = "\n".join(f"{mark} {escaped(note, format)}" for note in notes)
    return wrap(text) if format == "terminal" else text


def name(row: Row) -> str:
    """Label of a row, with ``(c)`` for a control."""
    return f"{row.label} (c)" if row.control else row.label


def score(row: Row, table: Table) -> str:
    """Test score of a row as text, or the word for its failure."""
    if row.scores.test is None:
        return row.scores.failures[0].word if row.scores.failures else "-"
    return estimated(row.scores.test, table)


def estimated(found: Estimate | None, table: Table, sign: str = "") -> str:
    """Format a mean with half of its interval, where that is known; ``-`` where there is no mean."""
    return "-" if found is None else found.written(*style(table.task["metric"]), sign)


def figure(value: float, table: Table, sign: str = "") -> str:
    """Format a score or a difference of scores: shares in per cent, others unchanged."""
    form, scale = style(table.task["metric"])
    return f"{scale * value:{sign}{form}}"


def unit(table: Table, written: str = " (%)") -> str:
    """Unit after a figure or the name of a metric; empty for metrics that are no shares."""
    return written if is_share(table) else ""


def is_share(table: Table) -> bool:
    """Tell whether the metric is a share, shown in per cent."""
    return table.task["metric"] in SHARES


def mebibytes(count: float) -> str:
    """Format bytes as ``22.1 MiB``."""
    return f"{count / 2**20:.1f} MiB"


def seconds(value: float, spread: float | None = None) -> str:
    """Format seconds with about three digits, and their spread with as many decimals."""
    places = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{places}f}" + ("" if spread is None else f" ± {spread:,.{places}f}")


def optional(value: float | None, form: Callable[[float], str]) -> str:
    """Format a figure with ``form``; ``-`` where there is none."""
    return "-" if value is None else form(value)


def training_length(budget: Mapping[str, Any]) -> str:
    """Length of training, with a remark on a constant learning rate: ``400 steps of 64 examples``."""
    steps, examples = budget["steps"], f"of {budget['batch_size']} examples"
    length = f"{steps} steps {examples}"
    if budget.get("seconds"):
        length = f"{seconds(budget['seconds'])} s of training, at most {steps:,} steps {examples}"
    length += " at a constant learning rate" if budget.get("schedule") == "constant" else ""
    return length + (
        f", after {budget['pretrain_steps']} steps of pretraining on masked tokens" if budget.get("pretrain_steps") else ""
    )


def beyond_sizes(model: Mapping[str, Any]) -> str:
    """A network's weight sharing, short convolution and gate, each after a comma; older records do not state them."""
    shared = ", one block for all layers" if model.get("shared_weights") else ""
    shared += ", with keys and values computed once" if model.get("reuse_keys") else ""
    width = model.get("short_convolution")
    shared += f", a short convolution ({width}) before every attention" if width else ""
    gate = model.get("output_gate", "none")
    return shared + (f", an output gate ({gate}) after every attention" if gate != "none" else "")
