"""``attn-zoo recommend``: recommend a mechanism from recorded results, for every use case or for given requirements."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from attn_zoo import reference
from attn_zoo.cli.parsing import quantity
from attn_zoo.cli.records_of import add_reference, loaded, records_root
from attn_zoo.escapes import terminal_lines
from attn_zoo.leaderboard.advise.abilities import ACCEPT
from attn_zoo.leaderboard.advise.needs import NEEDS
from attn_zoo.leaderboard.heat_costs import LENGTH

if TYPE_CHECKING:
    from attn_zoo.recommend import Requirements

_REQUIREMENTS = ("causal", "padding", "cross", "decode", "trained", "memory", "use", "task", "attention", "all")
"""Arguments, besides ``length``, with which the command prints one recommendation instead of a table."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``attn-zoo recommend``."""
    parser.description = (
        "Without requirements, print a table with one line for each use case. With requirements, recommend the cheapest mechanism "
        "that meets them and matches softmax in the records. It must match softmax and beat the controls (networks that cannot "
        "select tokens by content) on every task that decides, with three seeds. If there is none, recommend softmax and print "
        "the command whose results could change this advice."
    )
    parser.add_argument("--length", type=int, help=f"number of tokens (default: {LENGTH} if there are other requirements)")
    parser.add_argument("--width", type=int, default=256, help="width of the layer (default: 256)")
    parser.add_argument("--heads", type=int, default=4, help="number of heads (default: 4)")
    parser.add_argument("--batch", type=int, default=1, help="number of sequences in a step (default: 1)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="device; auto is cuda if there is a GPU")
    parser.add_argument("--direction", default="forward", choices=("forward", "training"), help="training adds the backward pass")
    parser.add_argument("--causal", action="store_true", help="causal attention: each position sees only itself and earlier ones")
    parser.add_argument("--padding", action="store_true", help="mask padding, because inputs of a batch differ in length")
    parser.add_argument("--cross", action="store_true", help="cross-attention: keys come from other tokens than the queries")
    parser.add_argument("--decode", action="store_true", help="generate token by token from a state smaller than keys and values")
    trained = "replace softmax in a trained model; the results of attn-zoo transplant decide"
    parser.add_argument("--trained", action="store_true", help=trained)
    limit = "memory limit, such as 4GiB, on tensors that training saves for the backward pass or, with --decode, on the state"
    parser.add_argument("--memory", metavar="SIZE", type=memory_bytes, help=limit)
    names = ", ".join(need.name for need in NEEDS)
    needs = f"use case whose tasks decide: {names} (default: all recorded tasks, causal ones only with --causal or --decode)"
    parser.add_argument("--for", dest="use", metavar="USE", help=needs)
    parser.add_argument("--task", metavar="NAME", help="decide by this task alone")
    accept = f"number of points of 100 by which a mechanism may be worse than softmax (default: {ACCEPT:g})"
    parser.add_argument("--accept", type=float, default=ACCEPT, metavar="POINTS", help=accept)
    row = "choose only among these: NAME, NAME:IMPLEMENTATION, NAME[OPTION=VALUE,...] (default: all mechanisms)"
    parser.add_argument("--attention", nargs="+", action="extend", default=[], metavar="ROW", help=row)
    add_reference(parser, default="records that came with the package")
    encoder = "with --trained or without requirements: file of attn-zoo transplant output=FILE (default: that of the package)"
    parser.add_argument("--transplant", type=Path, metavar="FILE", help=encoder)
    parser.add_argument("--all", action="store_true", help="also print all candidates, cautions and tasks that decide")
    parser.add_argument("--format", default="terminal", choices=("terminal", "json"))
    parser.set_defaults(handler=_recommend)


def memory_bytes(words: str) -> int:
    """Return the number of bytes in a size such as ``4GiB``.

    Raises:
        ArgumentTypeError: the text is not a size.
    """
    found = quantity("memory", words)
    if found is None or found < 1:
        raise argparse.ArgumentTypeError(f"must be a size such as 4GiB or 512MiB; got {words!r}")
    return int(found)


def required_of(parsed: argparse.Namespace) -> Requirements:
    """Return the requirements that the command-line arguments state.

    Raises:
        UnknownNameError: there is no such use case.
        ValueError: a size is out of its range, two requirements exclude each other, or this machine does not have the device.
    """
    from attn_zoo.bench.grid import resolve_device
    from attn_zoo.recommend import Requirements

    given = {field.name: getattr(parsed, field.name) for field in fields(Requirements)}
    given["length"] = LENGTH if parsed.length is None else parsed.length
    given["device"] = resolve_device("auto") if parsed.device == "auto" else parsed.device
    return Requirements(**given)


def _records(parsed: argparse.Namespace) -> Path:
    """Return the folder or packed file that is named, by default that of the package."""
    return records_root(parsed) if parsed.records or parsed.reference is not None else reference.default()


def _use_cases(parsed: argparse.Namespace) -> int:
    from attn_zoo.leaderboard import tables
    from attn_zoo.leaderboard.advise.table import use_cases, use_table
    from attn_zoo.registry import attentions, card
    from attn_zoo.result_files import read_transplant

    file = parsed.transplant or (None if parsed.records else reference.TRANSPLANT)
    transplant = None if file is None else read_transplant(file, "--transplant", finished=True)
    made = tables(loaded(_records(parsed)))
    recurrent = [name for name in attentions() if card(name).can.stepwise]
    found = use_cases(made, transplant, accept=parsed.accept, recurrent=recurrent)
    print(json.dumps([asdict(one) for one in found], indent=1) if parsed.format == "json" else use_table(found, parsed.accept))
    return 0


def _recommend(parsed: argparse.Namespace) -> int:
    from attn_zoo.leaderboard import tables
    from attn_zoo.recommend import recommend
    from attn_zoo.recommend.text import as_json, as_text
    from attn_zoo.registry import card
    from attn_zoo.result_files import read_transplant
    from attn_zoo.rows import rows_of

    if not any(getattr(parsed, name) for name in _REQUIREMENTS) and parsed.length is None:
        return _use_cases(parsed)
    required = required_of(parsed)
    if parsed.transplant and not parsed.trained:
        raise ValueError("--transplant must go with --trained. Add --trained, or leave --transplant out")
    rows = rows_of(parsed.attention) if parsed.attention else []
    if controls := [str(row) for row in rows if card(row.attention).control]:
        raise ValueError(
            f"--attention must not name controls, because controls are never recommended. Leave out {', '.join(controls)}"
        )
    file = parsed.transplant or reference.TRANSPLANT
    transplant = read_transplant(file, "--transplant", finished=True) if parsed.trained else None
    found = recommend(required, tables(loaded(_records(parsed))), transplant, rows=rows)
    print(as_json(found) if parsed.format == "json" else terminal_lines(as_text(found, whole=parsed.all)))
    return 0 if found.taken else 1
