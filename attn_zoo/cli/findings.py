"""``attn-zoo findings``: findings from records, in sentences."""

from __future__ import annotations

import argparse
from pathlib import Path

from attn_zoo.cli.records_of import add_reference, left_out, records_root
from attn_zoo.escapes import terminal_lines
from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.findings.abilities import ACCEPT
from attn_zoo.leaderboard.findings.page import findings
from attn_zoo.records import Store
from attn_zoo.reference import TRANSPLANT
from attn_zoo.registry import attentions, card
from attn_zoo.result_files import read_results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Strengths, weaknesses and costs of every mechanism, and recommendations for five needs; each sentence is computed from "
        "records, and says so where they do not suffice."
    )
    add_reference(parser)
    encoder = (
        "file of attn-zoo transplant output=FILE, for the need of a drop-in for a trained encoder (default: with --reference "
        "the one that came with the package)"
    )
    parser.add_argument("--transplant", type=Path, metavar="FILE", help=encoder)
    accept = f"largest loss of score against softmax that still counts as good, in points of 100 (default: {ACCEPT:g})"
    parser.add_argument("--accept", type=float, default=ACCEPT, metavar="POINTS", help=accept)
    parser.set_defaults(handler=_findings)


def _findings(parsed: argparse.Namespace) -> int:
    records, damaged = Store(records_root(parsed)).load()
    transplant = parsed.transplant or (None if parsed.reference is None else TRANSPLANT)
    found = None if transplant is None else read_results(transplant, "transplant", "--transplant", finished=True)
    recurrent = [name for name in attentions() if card(name).can.stepwise]
    print(terminal_lines(findings(tables(records), found, accept=parsed.accept, recurrent=recurrent)))
    for item in damaged:
        print(left_out(item))
    return 0
