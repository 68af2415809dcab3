"""``attn-zoo check``: the conformance kit on attentions and tasks, each report printed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from attn_zoo.conformance import run_cases
from attn_zoo.conformance.targets import cases_of, entries


def fill(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    target = "a registered name, a class with a card, or a file that registers one"
    parser.add_argument("targets", nargs="+", metavar="NAME | pkg.module:Class | FILE.py[:Class]", help=target)
    parser.set_defaults(handler=lambda parsed: check(parsed.targets))


def check(targets: Sequence[str]) -> int:
    """Check what the targets name (see ``conformance.targets``); the exit status is 0 if everything claimed is proved.

    Raises:
        UnknownNameError: nothing has this name.
        ValueError: a module or file cannot be imported or holds no class with a card, or a plugin that might cannot be loaded.
        OSError: a file does not exist.
    """
    status = 0
    for card in entries(targets):
        report = run_cases(card.name, cases_of(card))
        print(report, flush=True)
        status = status if report.ok else 1
    return status
