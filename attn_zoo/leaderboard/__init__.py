"""Leaderboard: tables, pages and figures computed from records alone. This package does not need PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from attn_zoo.checks import check_number, check_text
from attn_zoo.escapes import escaped
from attn_zoo.leaderboard.compare import ORDERS, ordered
from attn_zoo.leaderboard.rank import tables
from attn_zoo.leaderboard.statistics import Estimate, estimate
from attn_zoo.leaderboard.table import Row, Table
from attn_zoo.leaderboard.text import FORMATS, render
from attn_zoo.records import Store

__all__ = ["FORMATS", "ORDERS", "Estimate", "Row", "Table", "estimate", "leaderboard", "ordered", "render", "tables"]


def leaderboard(
    root: str | Path,
    *,
    format: str = "terminal",
    task: str | None = None,
    attention: str | None = None,
    overview: bool = False,
    by: str = "score",
    equal: Mapping[str, float] | None = None,
    at: Sequence[float] = (),
    seeds: bool = False,
    colours: str | None = None,
    wide: bool = False,
    legend: bool = False,
) -> str:
    """Return the leaderboard tables of a folder of records as text.

    Files that are not complete records are listed below the tables, except in CSV and JSON.

    Args:
        root: folder of records, or a packed file of records.
        overview: show only one table of scores, with a row per mechanism and a column per task; in the terminal, a heat map. CSV
            and JSON always have all tables.
        by: order of rows, one of ``ORDERS``.
        equal: budgets at which configurations are compared, by cost (``time``, ``FLOPs`` or ``memory``); see ``tables``.
        at: training times in seconds. A further column per time shows the best validation score of each row until then.
        seeds: also show the score of every seed.
        colours: colour system of the terminal: ``truecolor``, ``256`` or ``standard``; None for plain text.
        wide: show every column, even if the terminal is too narrow for all.
        legend: explain the columns in the terminal.

    Raises:
        ValueError: the format or the order is unknown, or a time or budget is not a number above 0.
        OSError: ``root`` is neither a folder nor a packed file.
    """
    check_text("format", format, FORMATS)
    check_text("by", by, ORDERS)
    for name, number in [*(("at", time) for time in at), *((f"equal {kind}", most) for kind, most in (equal or {}).items())]:
        check_number(name, number, above=0)
    records, damaged = Store(root).load()
    made = [ordered(table, by) for table in tables(records, task=task, attention=attention, equal=equal, at=at)]
    if not made:
        wanted = "".join(f" {kind} {name!r}" for kind, name in (("task", task), ("attention", attention)) if name)
        pairs = sorted({f"{record.spec.attention} on {record.spec.task}" for record in records})
        there = f". Recorded: {', '.join(pairs)}" if pairs else " yet; attn-zoo run makes one"
        text = f"no records{' of' + wanted if wanted else ''} in {str(root)!r}{there}"
        text = text if format not in ("csv", "json") else render([], format)
    else:
        shown = {"overview": overview, "seeds": seeds, "wide": wide, "legend": legend}
        text = render(made, format, colours=colours, by=by, **shown)
    if damaged and format not in ("csv", "json"):
        head, mark = ("% ", "%") if format == "latex" else ("", "-")
        text += f"\n\n{head}Files that were left out because they are not complete records:\n"
        text += "\n".join(f"{mark} {escaped(f'{item.path.name}: {item.reason}', format)}" for item in damaged)
    return text
