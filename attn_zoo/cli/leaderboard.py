"""``attn-zoo leaderboard``: print tables of recorded runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from attn_zoo.cli.parsing import check_output, quantity
from attn_zoo.cli.records_of import add_reference, loaded, name_left_out, records_root
from attn_zoo.leaderboard import FORMATS, ORDERS, Table, leaderboard, ordered, tables
from attn_zoo.leaderboard.heat_costs import recorded_columns
from attn_zoo.leaderboard.overview import colours_here
from attn_zoo.leaderboard.separation import render_separations, separates
from attn_zoo.records import RunRecord, Store
from attn_zoo.terminal import WIDE

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
    parser.add_argument("--seeds", action="store_true", help="also show the test score of every seed")
    scores = "print only scores by mechanism and task; in the terminal as a heat map, shaded from the best control of each task"
    parser.add_argument("--overview", action="store_true", help=scores)
    published = "show scores beside published ones, and how the settings differ"
    parser.add_argument("--published", action="store_true", help=published)
    separation = (
        "print for each task whether ROW beats the best control and whether groups of configurations differ (default: the "
        "mechanism that the card of the task names)"
    )
    parser.add_argument("--separation", nargs="?", const="", metavar="ROW", help=separation)
    parser.add_argument("--wide", action="store_true", help=WIDE)
    parser.add_argument("--legend", action="store_true", help="explain every column")
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

        drawn = draw(_tables(parsed, loaded(parsed.records)), parsed.plots)
        print(f"{len(drawn)} files in {parsed.plots}", file=sys.stderr)
    if parsed.output:
        print(f"writing {parsed.output} from the records in {parsed.records}", file=sys.stderr, flush=True)
    text = {"html": _page, "svg": _picture}.get(parsed.format, _text)(parsed)
    if parsed.output is None:
        print(text)
    else:
        parsed.output.write_text(text + "\n", encoding="utf-8")
    return 0


def _refuse(parsed: argparse.Namespace) -> None:
    """Check that the options can be carried out together.

    Raises:
        ValueError: options exclude each other, or the output has no folder.
    """

    def given(*names: str) -> list[str]:
        return [f"--{name}" for name in names if getattr(parsed, name)]

    said, format = given("overview", "seeds", "published"), parsed.format
    if parsed.separation is not None and (others := [*said, *given("attention", "plots")]):
        raise ValueError(
            "--separation prints only a verdict for each task, so it cannot be combined with other parts. Leave out "
            f"{', '.join(others)}"
        )
    if parsed.separation is not None and format == "html":
        raise ValueError(f"--format must be {' or '.join(FORMATS)} with --separation; got html")
    if format == "html" and said:
        raise ValueError(f"--format html always shows all parts. Leave out {', '.join(said)}")
    if format == "svg" and said:
        raise ValueError(f"--format svg draws only test scores by task. Leave out {', '.join(said)}")
    if (narrow := given("wide", "legend")) and format != "terminal":
        raise ValueError(
            f"{narrow[0]} must go with --format terminal, because --format {format} always shows everything. Leave {narrow[0]} out"
        )
    alone = [*given("overview", "published"), *([f"--format {format}"] if format in ("csv", "svg") else [])]
    if parsed.at and alone:
        raise ValueError(
            f"--at cannot be combined with {alone[0]}, because --at prints a table for each task. Leave out --at or {alone[0]}"
        )
    if parsed.output:
        check_output("--output", parsed.output)


def _tables(parsed: argparse.Namespace, records: Sequence[RunRecord]) -> list[Table]:
    made = tables(records, task=parsed.task, attention=parsed.attention, equal=budgets(parsed.equal), at=parsed.at)
    return [ordered(table, parsed.by) for table in made]


def _page(parsed: argparse.Namespace) -> str:
    from attn_zoo.leaderboard.page import ResultSet, html_page, records_from  # takes a tenth of a second, and tables do not need it

    records, damaged = Store(parsed.records).load()
    as_files = all((parsed.records / str(record.source)).exists() for record in records)  # not packed
    records_at = records_from(parsed.output, parsed.records) if parsed.output and as_files else None
    return html_page([ResultSet(_tables(parsed, records), records, records_at=records_at)], damaged)


def _picture(parsed: argparse.Namespace) -> str:
    from attn_zoo.leaderboard.heat_picture import heat_map_svg
    from attn_zoo.leaderboard.heatmap import heat_map

    made = _tables(parsed, loaded(parsed.records))
    return heat_map_svg(heat_map(made, recorded_columns(made))).rstrip()


def _text(parsed: argparse.Namespace) -> str:
    if parsed.separation is not None and (made := tables(loaded(parsed.records), task=parsed.task)):
        return render_separations(
            [separates(table, parsed.separation or _solved_by(table.task["name"])) for table in made], parsed.format
        )
    if parsed.published and (made := tables(loaded(parsed.records), task=parsed.task)):
        from attn_zoo.leaderboard.literature_text import render_published

        return render_published(made, parsed.format, attention=parsed.attention)
    if parsed.format in ("csv", "json"):
        name_left_out(Store(parsed.records).load()[1])
    names = ("format", "task", "attention", "overview", "by", "at", "seeds", "wide", "legend")
    colours = colours_here() if parsed.output is None else None
    return leaderboard(
        parsed.records, equal=budgets(parsed.equal), colours=colours, **{name: getattr(parsed, name) for name in names}
    )
