"""``attn-zoo diff``: compare two folders of records, A and B, and report whether B is significantly worse than A."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from attn_zoo.cli.parsing import InLines
from attn_zoo.cli.records_of import left_out, name_left_out, records_of
from attn_zoo.leaderboard.difference import COST_TOLERANCE, REGRESSIONS, TOLERANCE, difference, render_difference
from attn_zoo.terminal import wrap


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attn-zoo diff``."""
    parser.description = (
        "Compare records from before (A) and after (B) a change, for each configuration and paired by seed. Exit status: 1 if "
        "there is a difference of a kind in --fail-on, 2 for bad input, otherwise 0. Improvements are printed and never fail."
    )
    parser.epilog = "\n".join(["kinds of --fail-on:", *(f"  {kind:<9}  {said}" for kind, said in REGRESSIONS.items())])
    parser.formatter_class = InLines
    for name, said in (("a", "before the change"), ("b", "after the change")):
        parser.add_argument(name, metavar=name.upper(), type=Path, help=f"folder of records, or file of one record, from {said}")
    share = f"largest drop of a score to ignore: for shares such as accuracy absolute, else relative (default: {TOLERANCE})"
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, metavar="SHARE", help=share)
    cost = f"largest relative increase of time or memory to ignore (default: {COST_TOLERANCE})"
    parser.add_argument("--cost-tolerance", type=float, default=COST_TOLERANCE, metavar="SHARE", help=cost)
    parser.add_argument(
        "--fail-on",
        default=",".join(REGRESSIONS),
        metavar="KINDS",
        help="kinds of differences that make the command fail, separated by commas (default: all)",
    )
    parser.add_argument("--task", help="compare only this task")
    parser.add_argument("--attention", help="compare only this mechanism")
    parser.add_argument("--format", default="terminal", choices=("terminal", "github", "json"))
    parser.set_defaults(handler=_diff)


def _diff(parsed: argparse.Namespace) -> int:
    kinds = [kind for kind in parsed.fail_on.split(",") if kind]
    if unknown := [kind for kind in kinds if kind not in REGRESSIONS]:
        raise ValueError(f"--fail-on must list some of {', '.join(REGRESSIONS)}, separated by commas; got {', '.join(unknown)}")
    sides, damaged = [], []
    for path in (parsed.a, parsed.b):
        records, broken = records_of(path)
        sides.append([r for r in records if parsed.task in (None, r.spec.task) and parsed.attention in (None, r.spec.attention)])
        damaged += broken
    found = difference(*sides, tolerance=parsed.tolerance, cost_tolerance=parsed.cost_tolerance)
    failing = found.failing(kinds)
    if parsed.format == "json":
        print(json.dumps({**asdict(found), "fails": bool(failing)}, indent=1))
        name_left_out(damaged)
    else:
        text = "\n".join(
            [render_difference(found, kinds, parsed.format), *(left_out(item, format=parsed.format) for item in damaged)]
        )
        print(wrap(text) if parsed.format == "terminal" else text)
    return 1 if failing else 0
