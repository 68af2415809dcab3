"""``attn-zoo findings``: findings from records, in sentences."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from attn_zoo.cli.records_of import add_reference, left_out, records_root
from attn_zoo.escapes import terminal_lines
from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.findings.abilities import ACCEPT
from attn_zoo.leaderboard.findings.page import findings
from attn_zoo.records import Store
from attn_zoo.reference import TRANSPLANT
from attn_zoo.registry import attentions, card


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
    found = None if transplant is None else read_transplant(transplant)
    recurrent = [name for name in attentions() if card(name).can.stepwise]
    print(terminal_lines(findings(tables(records), found, accept=parsed.accept, recurrent=recurrent)))
    for item in damaged:
        print(left_out(item))
    return 0


def read_transplant(path: Path) -> Any:
    """Read a file of ``attn-zoo transplant``.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a file of ``attn-zoo transplant``, or was not finished.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"--transplant takes a file that attn-zoo transplant wrote; {path} is no JSON") from error
    kind = found.get("experiment") if isinstance(found, dict) else None
    if kind != "transplant":
        raise ValueError(f"--transplant takes a file of attn-zoo transplant; {path} is a file of {kind or 'another kind'}")
    if not found.get("complete"):
        raise ValueError(f"{path} was not finished; run the same attn-zoo transplant command again, which goes on from there")
    return found
