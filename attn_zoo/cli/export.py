"""``attn-zoo export``: write a layer as an ONNX or torch.export file, or list which attentions can be exported."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from attn_zoo.checks import check_seed
from attn_zoo.cli.parsing import check_output
from attn_zoo.terminal import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.description = (
        "Export a layer with new random weights, whose inputs are tokens and, where it honours padding, key_valid; run "
        "the file and compare it with eager. For a layer of your own: attn_zoo.export.export_layer(layer, Path(...))."
    )
    row = "NAME, NAME:IMPLEMENTATION (default: eager) or NAME[OPTION=VALUE,...], such as linformer[projected_length=64]"
    parser.add_argument("attention", nargs="?", metavar="ROW", help=row)
    parser.add_argument("--length", type=int, help="number of tokens that the layer is built for")
    parser.add_argument("--dim", type=int, help="width of the layer")
    parser.add_argument("--heads", type=int, help="number of heads")
    parser.add_argument("--causal", action="store_true", help="causal attention: position i sees positions up to i")
    parser.add_argument("--seed", type=int, help="seed of the weights (default: 0)")
    parser.add_argument("--format", choices=("onnx", "torch"), help="format of the file (default: onnx)")
    sizes = ("auto", "batch and length", "batch", "fixed")
    parser.add_argument("--sizes", choices=sizes, help="sizes that stay dynamic (default: auto, as many as possible)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="file to write; with --all, JSON file of the table")
    everything = "try every attention in both formats, and print a table, with reasons for failures"
    parser.add_argument("--all", action="store_true", help=everything)
    parser.set_defaults(handler=_export)


def _export(parsed: argparse.Namespace) -> int:
    """Refuse missing or meaningless arguments before anything is imported or built; then export."""
    given = {name: getattr(parsed, name) for name in ("length", "dim", "heads", "seed", "format", "sizes")}
    if parsed.all:
        extra = [f"--{name}" for name, value in given.items() if value is not None] + ["--causal"] * parsed.causal
        extra += [parsed.attention] if parsed.attention else []
        if extra:
            raise ValueError(f"--all tries every attention in every format; leave out {', '.join(extra)}")
        return _survey(parsed.output)
    lacking = ["ROW"] * (parsed.attention is None) + [f"--{name}" for name in ("length", "dim", "heads") if given[name] is None]
    lacking += ["--output"] * (parsed.output is None)
    if lacking:
        raise ValueError(f"export needs {', '.join(lacking)}; or --all for a table of what can be exported")
    return _layer(parsed)


def _layer(parsed: argparse.Namespace) -> int:
    import torch

    from attn_zoo.export import export_layer
    from attn_zoo.export.models import refuse_output
    from attn_zoo.layer import MultiHeadAttention
    from attn_zoo.rows import only_row

    format = parsed.format or "onnx"
    refuse_output(parsed.output, format)
    row = only_row("attention", parsed.attention)
    check_seed(seed := parsed.seed or 0)
    torch.manual_seed(seed)
    layer = MultiHeadAttention(
        parsed.dim,
        parsed.heads,
        row.attention,
        length=parsed.length,
        causal=parsed.causal,
        implementation="eager" if row.implementation == "auto" else row.implementation,
        **row.options,
    )
    print(f"{row.attention}: tracing, writing and running {parsed.output} takes seconds", file=sys.stderr, flush=True)
    made = export_layer(layer.eval(), parsed.output, format=format, sizes=parsed.sizes or "auto")
    opened = f"{' and '.join(made.open_sizes)} open" if made.open_sizes else "fixed sizes"
    opset = f", opset {made.opset}" if made.opset else ""
    show(f"{made.path}: {made.nbytes:,} bytes{opset}, {opened}; differs from eager by {made.difference:.1e} of the largest number")
    return 0


def _survey(output: Path | None) -> int:
    from attn_zoo.export import survey, table

    if output is not None:
        check_output("--output", output)
    found = survey(tell=lambda line: print(line, file=sys.stderr, flush=True))
    if output is not None:
        output.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    show(table(found, "simple"))
    return 0
