"""``attn-zoo diff``: compare two folders of records, A and B, and report whether B is significantly worse than A."""

from __future__ import annotations

import argparse
from pathlib import Path

from attn_zoo.cli.parsing import InLines
from attn_zoo.cli.records_of import name_left_out, records_of
from attn_zoo.leaderboard.difference import REGRESSIONS, TOLERANCE, difference, render_difference


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
    parser.add_argument(
        "--fail-on",
        default=",".join(REGRESSIONS),
        metavar="KINDS",
        help="kinds of differences that make the command fail, separated by commas (default: all)",
    )
    parser.set_defaults(handler=_diff)


def _diff(parsed: argparse.Namespace) -> int:
    kinds = [kind for kind in parsed.fail_on.split(",") if kind]
    if unknown := [kind for kind in kinds if kind not in REGRESSIONS]:
        raise ValueError(f"--fail-on must list some of {', '.join(REGRESSIONS)}, separated by commas; got {', '.join(unknown)}")
    (a, damaged), (b, more) = map(records_of, (parsed.a, parsed.b))
    name_left_out([*damaged, *more])
    rows = difference(a, b, parsed.tolerance)
    print(render_difference(rows, kinds, parsed.tolerance))
    return int(any(finding.kind in kinds for row in rows for finding in row.findings))
