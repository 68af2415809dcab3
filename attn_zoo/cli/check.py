"""``attn-zoo check``: run the conformance tests on mechanisms and tasks, and print a report for each."""

from __future__ import annotations

import argparse

import torch

from attn_zoo import deaths
from attn_zoo.cli.progress import Work
from attn_zoo.conformance import Case, Report, run_cases
from attn_zoo.conformance.attention_suite import DEFAULT, unknown_of
from attn_zoo.conformance.targets import Card, cases_of, entries, note_of
from attn_zoo.terminal import wrap

REMEDY = (
    "  Write your equation in a few naive lines as a method `definition`, with the arguments of `attend`; the checks then "
    "compare both (docs/tutorials/add-a-mechanism.md). Until then, attn-zoo check --strict fails."
)
"""Advice that the report gives for a mechanism without the method ``definition``."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attn-zoo check``."""
    parser.description = (
        "Run the conformance tests, which check that a mechanism or task does what its card declares. Exit status: 1 if one fails."
    )
    target = "a registered name, a class with a card, or a file that registers one"
    parser.add_argument("targets", nargs="+", metavar="NAME | pkg.module:Class | FILE.py[:Class]", help=target)
    device = "device type on which every implementation is checked, such as cuda (default: the CPU, and a GPU if one is needed)"
    parser.add_argument("--device", help=device)
    parser.add_argument(
        "--defaults", action="store_true", help="check only the default options, not the variants (sets of options) on the card"
    )
    strict = "also fail if a mechanism has no definition, because then no check compares its output with the equation"
    parser.add_argument("--strict", action="store_true", help=strict)
    parser.set_defaults(handler=_check)


def _check(parsed: argparse.Namespace) -> int:
    status = 0
    for card in entries(parsed.targets):
        report = prove(card, parsed.device, defaults=parsed.defaults)
        print(wrap(str(report)), flush=True)
        if report.unknown:
            print(wrap(REMEDY), flush=True)
        status = status if report.ok and not (parsed.strict and report.unknown) else 1
    return status


def prove(card: Card, device: str | None = None, *, defaults: bool = False) -> Report:
    """Run the conformance tests on a mechanism or a task, show progress, and return the report.

    Args:
        device: device on which every implementation is checked. None uses the CPU, and a GPU for implementations that need one.
        defaults: True to check only the default options.

    Raises:
        ValueError: ``device`` is not a device on which PyTorch can compute here.
    """
    where = None if device is None else _device(device)
    cases = list(cases_of(card, where))
    cases = [case for case in cases if not defaults or case.variant in ("", DEFAULT)]
    with Work(f"check {card.name}", len(cases), even=False) as work:

        def tell(case: Case, done: int) -> None:
            deaths.note(f"the check {case.setting} of {card.name}")
            work.update(done, case.setting)

        return run_cases(card.name, cases, note=note_of(card), unknown=unknown_of(card), tell=tell)


def _device(name: str) -> torch.device:
    try:
        found = torch.empty(0, device=name).device
    except (AssertionError, ImportError, RuntimeError) as error:
        raise ValueError(f"--device must be a device that PyTorch finds here, such as cpu or cuda; got {name!r}") from error
    return found
