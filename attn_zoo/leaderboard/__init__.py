"""What is shown: pure functions of records. Needs no tensor library."""

from __future__ import annotations

from pathlib import Path

from attn_zoo.leaderboard.render import FORMATS, render
from attn_zoo.leaderboard.rows import Row, Table, tables
from attn_zoo.leaderboard.statistics import Estimate, estimate
from attn_zoo.records import Store

__all__ = ["FORMATS", "Estimate", "Row", "Table", "estimate", "leaderboard", "render", "tables"]


def leaderboard(
    root: str | Path,
    *,
    format: str = "terminal",
    task: str | None = None,
    attention: str | None = None,
    overview: bool = False,
) -> str:
    """The tables of a records folder as text; files that are no records are named beneath, and stop nothing.

    With ``overview``, one table of scores by attention and task and no more; CSV and JSON are always whole.

    Raises:
        ValueError: no such format.
    """
    records, damaged = Store(root).load()
    made = tables(records, task=task, attention=attention)
    if not made:
        wanted = "".join(f" {kind} {name!r}" for kind, name in (("task", task), ("attention", attention)) if name)
        text = f"no records{' of' + wanted if wanted else ''} in {str(root)!r} yet; attn-zoo run makes one"
        text = text if format not in ("csv", "json") else render([], format)
    else:
        text = render(made, format, overview=overview)
    if damaged and format not in ("csv", "json"):
        text += "\n\nFiles that are no whole records and were left out:\n"
        text += "\n".join(f"- {item.path.name}: {item.reason}" for item in damaged)
    return text
