"""``attn-zoo leaderboard``: print tables of recorded runs."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attn_zoo.cli.parsing import check_output, quantity
from attn_zoo.cli.records_of import add_reference, loaded, name_left_out, records_root
from attn_zoo.leaderboard import FORMATS, ORDERS, Table, leaderboard, ordered, tables
from attn_zoo.leaderboard.separation import render_separations, separates
from attn_zoo.records import RunRecord, Store
from attn_zoo.terminal import WIDE, colours_here

_FORMAT = "html is one page that needs no network, svg the heat map of mechanisms by tasks (default: terminal)"
_PLOTS = "draw the heat map, and the scores against each cost with one curve per mechanism over its options, as PNG and SVG"
_COSTS = {"time": "time", "flops": "FLOPs", "memory": "memory"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attn-zoo leaderboard``."""
    parser.description = "Print tables of recorded runs: scores of mechanisms by task, verdicts, costs and scores at equal budgets."
    add_reference(parser)
    parser.add_argument("--task", help="show only this task")
    parser.add_argument("--attention", help="show only this mechanism; it is still compared with all mechanisms")
    parser.add_argument("--format", default="terminal", choices=(*FORMATS, "html", "svg"), help=_FORMAT)
    parser.add_argument("--by", default="score", choices=ORDERS, help="order of rows (default: score)")
    budget = (
        "budget at which scores are compared: time=30s, flops=2e12 or memory=64MiB; may be repeated (default: the time and FLOPs "
        "that every ranked configuration spent, and the memory of softmax)"
    )
    parser.add_argument("--equal", action="append", default=[], metavar="COST=BUDGET", help=budget)
    after = "training times at which to show the best validation score so far, such as 5min,15min,30min"
    parser.add_argument("--at", default=(), type=times, metavar="TIME,TIME", help=after)
    scores = "print only scores by mechanism and task; in the terminal as a heat map, shaded from the best control of each task"
    parser.add_argument("--overview", action="store_true", help=scores)
    published = "show scores beside published ones, and how the settings differ"
    parser.add_argument("--published", action="store_true", help=published)
    separation = "print for each task whether its best known mechanism beats the best control and whether groups of rows differ"
    parser.add_argument("--separation", action="store_true", help=separation)
    parser.add_argument("--wide", action="store_true", help=WIDE)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to this file")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help=_PLOTS)
    parser.set_defaults(handler=_leaderboard)


def budgets(words: Iterable[str]) -> dict[str, float]:
    """Parse words such as ``time=30s``, and return the budget for each cost. The units are seconds, FLOPs and bytes.

    Raises:
        ValueError: a word is not a budget, or a cost is named twice.
    """
    found: dict[str, float] = {}
    for word in words:
        cost, _, amount = word.partition("=")
        value = quantity(cost.lower(), amount)
        if value is None:
            raise ValueError(
                f"--equal must be a budget above 0, such as time=30s, time=5min, flops=2T or memory=64MiB; got {word!r}"
            )
        name = _COSTS[cost.lower()]
        if name in found:
            raise ValueError(f"--equal must give at most one budget per cost; got two for {cost}. Leave one of them out")
        found[name] = value
    return found


def times(words: str) -> tuple[float, ...]:
    """Parse a text such as ``5min,900s``, and return the times in seconds, the shortest first.

    Raises:
        ArgumentTypeError: a part is not a time.
    """
    found = [quantity("time", word) for word in words.split(",")]
    if None in found:
        raise argparse.ArgumentTypeError(f"must be times above 0, separated by commas, such as 30s,5min,1h; got {words!r}")
    return tuple(sorted({time for time in found if time is not None}))


def _solved_by(task: str) -> str:
    """Return the mechanism that solves a task according to its card, or softmax for a task that is not registered here."""
    from attn_zoo.registry import task_card, task_names

    return task_card(task).solved_by if task in task_names() else "softmax"


def _leaderboard(parsed: argparse.Namespace) -> int:
    _refuse(parsed)
    parsed.records = records_root(parsed)
    if parsed.plots:
        from attn_zoo.leaderboard.plot import draw
        from attn_zoo.registry import not_causal

        drawn = draw(_tables(parsed, loaded(parsed.records)), parsed.plots, not_causal())
        print(f"{len(drawn)} files in {parsed.plots}", file=sys.stderr)
    if parsed.output:
        print(f"writing {parsed.output} from the records in {parsed.records}", file=sys.stderr, flush=True)
    with _collector_paused():
        text = {"html": _page, "svg": _picture}.get(parsed.format, _text)(parsed)
    if parsed.output is None:
        print(text)
    else:
        parsed.output.write_text(text + "\n", encoding="utf-8")
    return 0


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Return a context without garbage collection, which takes an eighth of the time of a table, and finds nothing, because all
    records are kept until the table is made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_PARTS = ("separation", "published", "overview", "at")
"""Options that select what is printed."""
_WITHOUT = {"html": _PARTS[:-1], "svg": _PARTS, "csv": ("at",)}
"""Options with which a format cannot be combined."""


def _refuse(parsed: argparse.Namespace) -> None:
    """Check that the options can be carried out together.

    Raises:
        ValueError: options exclude each other, or the output has no folder.
    """
    given, format = [name for name in _PARTS if getattr(parsed, name)], parsed.format
    if len(given) > 1:
        raise ValueError(f"--{given[0]} prints a table of its own. Leave out --{given[0]} or --{given[1]}")
    if wrong := [name for name in given if name in _WITHOUT.get(format, ())]:
        raise ValueError(f"--format {format} cannot be combined with --{wrong[0]}. Leave out one of them")
    if parsed.wide and format != "terminal":
        raise ValueError(
            f"--wide must go with --format terminal, because --format {format} always shows everything. Leave --wide out"
        )
    if parsed.output:
        check_output("--output", parsed.output)


def _tables(parsed: argparse.Namespace, records: Sequence[RunRecord]) -> list[Table]:
    made = tables(records, task=parsed.task, attention=parsed.attention, equal=budgets(parsed.equal), at=parsed.at)
    return [ordered(table, parsed.by) for table in made]


def _page(parsed: argparse.Namespace) -> str:
    from attn_zoo.leaderboard.page import ResultSet, html_page  # takes a tenth of a second, and tables do not need it
    from attn_zoo.registry import not_causal

    records, damaged = Store(parsed.records).load()
    return html_page([ResultSet(_tables(parsed, records), records, not_causal=not_causal())], damaged)


def _picture(parsed: argparse.Namespace) -> str:
    from attn_zoo.leaderboard.heat_picture import heat_map_svg
    from attn_zoo.leaderboard.heatmap import heat_map
    from attn_zoo.registry import not_causal

    return heat_map_svg(heat_map(_tables(parsed, loaded(parsed.records)), not_causal())).rstrip()


def _text(parsed: argparse.Namespace) -> str:
    if (parsed.separation or parsed.published) and (made := tables(loaded(parsed.records), task=parsed.task)):
        if parsed.separation:
            return render_separations([separates(table, _solved_by(table.task["name"])) for table in made], parsed.format)
        from attn_zoo.leaderboard.literature import render_published

        return render_published(made, parsed.format, attention=parsed.attention)
    if parsed.format in ("csv", "json"):
        name_left_out(Store(parsed.records).load()[1])
    names = ("format", "task", "attention", "overview", "by", "at", "wide")
    colours = colours_here() if parsed.output is None else None
    return leaderboard(
        parsed.records, equal=budgets(parsed.equal), colours=colours, **{name: getattr(parsed, name) for name in names}
    )
