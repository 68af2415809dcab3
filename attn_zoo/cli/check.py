"""``attn-zoo check``: the conformance kit on attentions and tasks, each report printed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from attn_zoo.conformance import run_cases
from attn_zoo.conformance.attention_suite import DEFAULT
from attn_zoo.conformance.targets import cases_of, entries, note_of


def fill(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    target = "a registered name, a class with a card, or a file that registers one"
    parser.add_argument("targets", nargs="+", metavar="NAME | pkg.module:Class | FILE.py[:Class]", help=target)
    device = "prove every implementation there, such as cuda (default: the CPU, and a GPU for what needs one)"
    parser.add_argument("--device", help=device)
    parser.add_argument("--defaults", action="store_true", help="prove the default options alone, and no variants")
    parser.set_defaults(handler=lambda parsed: check(parsed.targets, parsed.device, defaults=parsed.defaults))


def check(targets: Sequence[str], device: str | None = None, *, defaults: bool = False) -> int:
    """Check what the targets name (see ``conformance.targets``); the exit status is 0 if everything claimed is proved.

    Raises:
        UnknownNameError: nothing has this name.
        ValueError: a module or file cannot be imported or holds no class with a card, or a plugin that might cannot be loaded.
        OSError: a file does not exist.
    """
    status = 0
    for card in entries(targets):
        cases = cases_of(card, None if device is None else torch.device(device))
        chosen = [case for case in cases if not defaults or case.variant in ("", DEFAULT)]
        report = run_cases(card.name, chosen, note=note_of(card))
        print(report, flush=True)
        status = status if report.ok else 1
    return status
