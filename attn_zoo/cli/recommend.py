"""``attn-zoo recommend``: recommend a mechanism from recorded results, for every use case or for given requirements."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from attn_zoo import reference
from attn_zoo.cli.parsing import quantity
from attn_zoo.cli.records_of import add_reference, loaded, records_root
from attn_zoo.escapes import terminal_lines
from attn_zoo.leaderboard.heatmap import LENGTH
from attn_zoo.recommend.needs import ACCEPT, NEEDS

_REQUIREMENTS = ("length", "causal", "padding", "cross", "decode", "trained", "memory", "use", "task", "attention", "all")
"""Arguments with which the command prints one answer instead of a table."""


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
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"), help="device; auto is cuda if there is a GPU")
    parser.add_argument("--direction", default="forward", choices=("forward", "training"), help="training adds the backward pass")
    parser.add_argument("--causal", action="store_true", help="causal attention: each position sees only itself and earlier ones")
    parser.add_argument("--padding", action="store_true", help="mask padding, because inputs of a batch differ in length")
    parser.add_argument("--cross", action="store_true", help="cross-attention: keys come from other tokens than the queries")
    parser.add_argument("--decode", action="store_true", help="generate token by token from a state smaller than keys and values")
    trained = "replace softmax in a trained model; the results of attn-zoo transplant decide"
    parser.add_argument("--trained", action="store_true", help=trained)
    limit = "memory limit of one layer and sequence, such as 4GiB: tensors saved for the backward pass or, with --decode, the state"
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
    parser.add_argument("--all", action="store_true", help="also print all candidates and the tasks that decide")
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


def _recommend(parsed: argparse.Namespace) -> int:
    from attn_zoo.bench.experiment import resolve_device
    from attn_zoo.leaderboard import tables
    from attn_zoo.recommend.answer import recommend, use_cases
    from attn_zoo.recommend.candidates import Requirements
    from attn_zoo.recommend.text import as_text, use_table
    from attn_zoo.registry import card
    from attn_zoo.result_files import read_transplant
    from attn_zoo.rows import rows_of

    single = any(getattr(parsed, name) not in (None, False, []) for name in _REQUIREMENTS)
    given = {field.name: getattr(parsed, field.name) for field in fields(Requirements)}
    given["length"] = LENGTH if parsed.length is None else parsed.length
    given["device"] = resolve_device("auto") if parsed.device == "auto" and single else parsed.device
    required = Requirements(**given)
    if parsed.transplant and single and not parsed.trained:
        raise ValueError("--transplant must go with --trained. Add --trained, or leave --transplant out")
    rows = rows_of(parsed.attention) if parsed.attention else []
    if controls := [str(row) for row in rows if card(row.attention).control]:
        raise ValueError(
            f"--attention must not name controls, because controls are never recommended. Leave out {', '.join(controls)}"
        )
    file = parsed.transplant or (None if parsed.records and not single else reference.TRANSPLANT)
    transplant = read_transplant(file, "--transplant", finished=True) if file and (parsed.trained or not single) else None
    named = parsed.records or parsed.reference is not None
    made = tables(loaded(records_root(parsed) if named else reference.default()))
    if not single:
        print(use_table(use_cases(made, transplant, parsed.accept), parsed.accept))
        return 0
    found = recommend(required, made, transplant, rows=rows)
    print(terminal_lines(as_text(found, whole=parsed.all)))
    return 0 if found.taken else 1
