"""``attn-zoo recommend``: which attention to take for given requirements, by evidence; softmax where there is none."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from attn_zoo import reference
from attn_zoo.cli.parsing import quantity
from attn_zoo.cli.records_of import add_records
from attn_zoo.leaderboard.findings.abilities import ACCEPT
from attn_zoo.leaderboard.findings.needs import NEEDS

if TYPE_CHECKING:
    from attn_zoo.recommend import Requirements


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Take the cheapest attention that meets the requirements and that records show, with three seeds at every task that "
        "decides, to be close to softmax and better than controls; softmax where none does, with the command that could change it."
    )
    parser.add_argument("--length", type=int, required=True, help="tokens")
    parser.add_argument("--width", type=int, default=256, help="of the layer (default: 256)")
    parser.add_argument("--heads", type=int, default=4, help="(default: 4)")
    parser.add_argument("--batch", type=int, default=1, help="sequences in a step (default: 1)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="auto is cuda where there is one")
    parser.add_argument("--direction", default="forward", choices=("forward", "training"), help="training: forward and backward")
    parser.add_argument("--causal", action="store_true", help="positions see only those before them")
    parser.add_argument("--padding", action="store_true", help="inputs of a batch have different lengths")
    parser.add_argument("--cross", action="store_true", help="keys of other tokens than the queries")
    parser.add_argument("--decode", action="store_true", help="generate token by token from a state smaller than keys and values")
    parser.add_argument("--trained", action="store_true", help="put it into a model trained with softmax, judged by transplants")
    limit = "limit, such as 4GiB, of what training saves for the backward pass, or with --decode of the state"
    parser.add_argument("--memory", metavar="SIZE", type=memory_bytes, help=limit)
    names = ", ".join(need.name for need in NEEDS)
    needs = f"need whose tasks decide: {names} (default: every recorded task of the direction)"
    parser.add_argument("--for", dest="use", metavar="NEED", help=needs)
    parser.add_argument("--task", metavar="NAME", help="task that decides alone")
    accept = f"what may be lost to softmax (default: {ACCEPT:g} of 100)"
    parser.add_argument("--accept", type=float, default=ACCEPT, metavar="POINTS", help=accept)
    row = "choose among these alone: NAME, NAME:IMPLEMENTATION, NAME[OPTION=VALUE,...] (default: the zoo, sizes by length)"
    parser.add_argument("--attention", nargs="+", action="extend", default=[], metavar="ROW", help=row)
    add_records(parser, default="those that came with the package")
    encoder = "with --trained, what attn-zoo transplant output=FILE wrote (default: what came with the package)"
    parser.add_argument("--transplant", type=Path, metavar="FILE", help=encoder)
    parser.add_argument("--measure", action="store_true", help="time softmax and those that qualify here; take the fastest")
    parser.add_argument("--all", action="store_true", help="also every task, candidate, refusal and doubt")
    parser.add_argument("--format", default="terminal", choices=("terminal", "json"))
    parser.set_defaults(handler=_recommend)


def memory_bytes(words: str) -> int:
    """``4GiB`` as bytes.

    Raises:
        ArgumentTypeError: no number of bytes.
    """
    found = quantity("memory", words)
    if found is None or found < 1:
        raise argparse.ArgumentTypeError(f"takes a size such as 4GiB or 512MiB; got {words!r}")
    return int(found)


def required_of(parsed: argparse.Namespace) -> Requirements:
    """Requirements that the arguments state.

    Raises:
        UnknownNameError: no such need.
        ValueError: a size is out of its range, two requirements exclude each other, or there is no such device here.
    """
    from attn_zoo.cost.grid import resolve_device
    from attn_zoo.recommend import Requirements

    names = ("length", "width", "heads", "batch", "direction", "causal", "padding", "cross", "decode", "trained", "memory", "use")
    device = resolve_device("auto") if parsed.device == "auto" else parsed.device
    given = {name: getattr(parsed, name) for name in names}
    return Requirements(device=device, task=parsed.task, accept=parsed.accept, **given)


def _recommend(parsed: argparse.Namespace) -> int:
    from attn_zoo.cli.findings import read_transplant
    from attn_zoo.cli.records_of import loaded, records_root
    from attn_zoo.cost.grid import resolve_device
    from attn_zoo.leaderboard import tables
    from attn_zoo.recommend import recommend
    from attn_zoo.recommend.text import as_json, as_text
    from attn_zoo.recommend.timing import times
    from attn_zoo.registry import card
    from attn_zoo.rows import rows_of

    required = required_of(parsed)
    if parsed.transplant and not parsed.trained:
        raise ValueError("--transplant is evidence of trained models; add --trained")
    if parsed.measure:
        resolve_device(required.device)
        if parsed.decode:
            raise ValueError("--measure times whole sequences, and --decode is generation token by token; leave out one of the two")
    rows = rows_of(parsed.attention) if parsed.attention else []
    if controls := [str(row) for row in rows if card(row.attention).control]:
        raise ValueError(f"controls are never recommended; leave {', '.join(controls)} out of --attention")
    records = records_root(parsed) if parsed.records else reference.default()
    transplant = read_transplant(parsed.transplant or reference.TRANSPLANT) if parsed.trained else None
    found = recommend(
        required,
        tables(loaded(records)),
        transplant,
        rows=rows,
        timer=(lambda required, layers: times(required, layers, _tell)) if parsed.measure else None,
    )
    print(as_json(found) if parsed.format == "json" else as_text(found, whole=parsed.all))
    return 0 if found.taken else 1


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
