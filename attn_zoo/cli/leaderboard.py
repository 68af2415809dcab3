"""``attn-zoo leaderboard``: tables of what is recorded."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from attn_zoo.leaderboard import FORMATS, ORDERS, Table, leaderboard, ordered, tables
from attn_zoo.leaderboard.beside_text import render_published
from attn_zoo.leaderboard.page import html_page, records_from
from attn_zoo.leaderboard.plots import draw, missing_plots
from attn_zoo.leaderboard.render.separation import render_separations
from attn_zoo.leaderboard.separation import separates
from attn_zoo.records import RunRecord, Store

_COSTS = {"time": "time", "flops": "FLOPs", "memory": "memory"}
_UNITS = {
    "time": {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0},
    "flops": {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15},
    "memory": {"": 1.0, "b": 1.0, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30},
}


def fill(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("--records", default="runs", help="folder of records (default: runs)")
    parser.add_argument("--task", help="only this task")
    parser.add_argument("--attention", help="only this attention; its ranks and margins stay those among all")
    parser.add_argument("--format", default="terminal", choices=(*FORMATS, "html"))
    parser.add_argument("--by", default="score", choices=ORDERS, help="what rows are ordered by (default: score)")
    parser.add_argument(
        "--equal",
        action="append",
        default=[],
        metavar="COST=BUDGET",
        help="budget of a board: time=30s, flops=2e12 or memory=64MiB; may be repeated (default: what every contender has spent)",
    )
    parser.add_argument("--seeds", action="store_true", help="the test score of every seed as well")
    parser.add_argument("--overview", action="store_true", help="one table of scores by attention and task, without the costs")
    published = "scores beside those that others have published, how their settings differ, and which of their orderings hold"
    parser.add_argument("--published", action="store_true", help=published)
    separation = "which tasks separate: ROW (default: softmax) is far above the best control, and tie groups stand apart"
    parser.add_argument("--separation", nargs="?", const="softmax", metavar="ROW", help=separation)
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write to a file; with --format html, one page that needs no network"
    )
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw scores against costs and learning curves as PNG and SVG")
    parser.set_defaults(handler=_leaderboard)


def budgets(words: Iterable[str]) -> dict[str, float]:
    """``COST=BUDGET`` words as budgets by cost, in seconds, FLOPs and bytes.

    Raises:
        ValueError: a word is no budget, or a cost is named twice.
    """
    found: dict[str, float] = {}
    for word in words:
        cost, _, amount = word.partition("=")
        match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?) ?([a-z]*)", amount.lower())
        if cost.lower() not in _COSTS or not match or match[2] not in _UNITS[cost.lower()]:
            raise ValueError(
                f"--equal takes time=SECONDS (or 5min, 1h), flops=NUMBER (or 2T) or memory=BYTES (or 64MiB); got {word!r}"
            )
        name = _COSTS[cost.lower()]
        if name in found:
            raise ValueError(f"--equal {cost} is given twice; one budget makes one board")
        try:
            value = float(match[1]) * _UNITS[cost.lower()][match[2]]
        except ValueError as error:
            raise ValueError(f"--equal {word} has no number that can be read") from error
        if not (0 < value < math.inf):
            raise ValueError(f"--equal {word}: a budget is above 0 and finite")
        found[name] = value
    return found


def _leaderboard(parsed: argparse.Namespace) -> int:
    _refuse(parsed)
    if parsed.plots:
        drawn = draw(_tables(parsed, Store(parsed.records).load()[0]), parsed.plots)
        print(f"{len(drawn)} files in {parsed.plots}", file=sys.stderr)
    text = _page(parsed) if parsed.format == "html" else _text(parsed)
    if parsed.output is None:
        print(text)
    else:
        parsed.output.write_text(text + "\n", encoding="utf-8")
    return 0


def _refuse(parsed: argparse.Namespace) -> None:
    """Refuse, before anything is read, what could not be carried out.

    Raises:
        ValueError: options that exclude each other, or plots without matplotlib.
        OSError: no place for the output.
    """
    said = [f"--{name}" for name in ("overview", "seeds", "published") if getattr(parsed, name)]
    if parsed.separation and (others := [*said, *(f"--{name}" for name in ("attention", "plots") if getattr(parsed, name))]):
        raise ValueError(f"--separation judges whole tasks and prints nothing else; leave out {', '.join(others)}")
    if parsed.separation and parsed.format == "html":
        raise ValueError(f"--separation prints as {', '.join(FORMATS)}; got --format html")
    if parsed.format == "html" and said:
        raise ValueError(f"the page of --format html shows all of that in any case; leave out {', '.join(said)}")
    if parsed.plots and (reason := missing_plots()):
        raise ValueError(reason)
    if parsed.output and (parsed.output.is_dir() or not parsed.output.parent.is_dir()):
        lacking = "is a folder" if parsed.output.is_dir() else "lies in no folder that exists"
        raise OSError(f"--output takes a file in a folder that exists; {str(parsed.output)!r} {lacking}")


def _tables(parsed: argparse.Namespace, records: Sequence[RunRecord]) -> list[Table]:
    made = tables(records, task=parsed.task, attention=parsed.attention, equal=budgets(parsed.equal))
    return [ordered(table, parsed.by) for table in made]


def _page(parsed: argparse.Namespace) -> str:
    records, damaged = Store(parsed.records).load()
    records_at = records_from(parsed.output, Path(parsed.records)) if parsed.output else None
    return html_page(_tables(parsed, records), records, damaged, records_at=records_at)


def _text(parsed: argparse.Namespace) -> str:
    if parsed.separation and (made := tables(Store(parsed.records).load()[0], task=parsed.task)):
        return render_separations([separates(table, parsed.separation) for table in made], parsed.format)
    made = tables(Store(parsed.records).load()[0], task=parsed.task) if parsed.published else []
    if made:
        return render_published(made, parsed.format, attention=parsed.attention)
    return leaderboard(
        parsed.records,
        format=parsed.format,
        task=parsed.task,
        attention=parsed.attention,
        overview=parsed.overview,
        by=parsed.by,
        equal=budgets(parsed.equal),
        seeds=parsed.seeds,
    )
