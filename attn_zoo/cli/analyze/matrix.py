"""``attn-zoo analyze matrix``: compare the effective attention matrix of a mechanism (A in output = A V) with softmax's matrix."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from attn_zoo.analysis.effective import effective_matrix, matrix_facts
from attn_zoo.analysis.feeding import build_layers
from attn_zoo.analysis.plot_matrix import plot_matrix
from attn_zoo.cli.analyze.inputs import PLAIN, add_inputs, inputs_of, said
from attn_zoo.cli.analyze.results import add_results, deliver
from attn_zoo.records import describe_environment
from attn_zoo.registry import card, stated_options
from attn_zoo.rows import RowName, rows_of


def add_to(analyses: Any) -> None:
    """Add the subcommand ``matrix`` to ``attn-zoo analyze``."""
    matrix = analyses.add_parser(
        "matrix",
        help="the effective attention matrix of a mechanism, beside that of softmax on the same inputs",
        description="Print the matrix A that a mechanism applies to the values (Y = A V) for given queries and keys, beside the "
        "matrix P of softmax. If the output is not of the form A V, an error says why.",
    )
    matrix.add_argument("--attention", required=True, metavar="ROW", help="mechanism: NAME or NAME[OPTION=VALUE,...]")
    add_inputs(matrix, sentences=1)
    matrix.add_argument("--layer", type=int, default=0, help="layer of the model, counted from 0 (default: 0)")
    matrix.add_argument("--head", type=int, default=0, help="head, counted from 0 (default: 0)")
    matrix.add_argument("--sentence", type=int, default=0, help="sequence, counted from 0 (default: 0)")
    add_results(matrix, "matrix.json, .png, .svg, effective.npy and exact.npy", ("json",), _matrix)


def _matrix(parsed: argparse.Namespace) -> int:
    rows = [] if parsed.attention == "all" else rows_of(parsed.attention, plain=PLAIN)
    if len(rows) != 1:
        raise ValueError(
            f"--attention must name one mechanism; got {parsed.attention!r}. Use attn-zoo analyze error to compare several"
        )
    for option in ("layer", "head", "sentence"):
        if getattr(parsed, option) < 0:
            raise ValueError(f"--{option} must be at least 0; got {getattr(parsed, option)}")
    if parsed.sentence >= parsed.sentences:
        raise ValueError(f"--sentence must be at least 0 and below --sentences={parsed.sentences}; got {parsed.sentence}")
    found, effective, exact = measure_matrix(parsed, rows[0])
    return deliver(parsed, "matrix", found, lambda _: _text(found), partial(_draw, found, effective, exact))


def measure_matrix(
    parsed: argparse.Namespace, row: RowName
) -> tuple[dict[str, Any], Float[Tensor, "queries keys"], Float[Tensor, "queries keys"]]:
    """Return three results for one head, from the same inputs:

    - properties of a mechanism's effective attention matrix A (for values V, the output is A V), as a dictionary for JSON;
    - the matrix A;
    - softmax's attention matrix.
    """
    layers, inputs = inputs_of(parsed)
    for option, there in (("layer", inputs["layers"]), ("head", inputs["heads"])):
        if getattr(parsed, option) >= there:
            raise ValueError(f"--{option} must be below {there}, because it is counted from 0; got {getattr(parsed, option)}")
    one = [layer.sequence(parsed.sentence) for layer in layers]
    built, drawn = build_layers(row.attention, one, row.options, parsed.seed)
    softmax, _ = build_layers("softmax", one, {})
    at, head = parsed.layer, parsed.head
    effective, exact = (effective_matrix(stack[at], one[at])[0, head] for stack in (built, softmax))
    valid = one[at].query_valid
    facts = matrix_facts(effective, exact, None if valid is None else valid[0])
    found = {
        "analysis": "matrix",
        "attention": row.attention,
        "label": str(row),
        "options": {name: value for name, value in stated_options(card(row.attention), row.options).items() if value != ""},
        "seed": parsed.seed if drawn else None,
        "parameters": sum(p.numel() for p in built[at].parameters() if p.requires_grad),
        "inputs": inputs,
        "layer": at,
        "head": head,
        "sentence": parsed.sentence,
        **asdict(facts),
        "environment": describe_environment("cpu"),
    }
    return found, effective, exact


def _text(found: Mapping[str, Any]) -> str:
    lines = [
        f"{found['label']}, {_place(found)}",
        f"row sums:          {found['row_sum_least']:.4f} to {found['row_sum_most']:.4f}, mean {found['row_sum_mean']:.4f}",
        f"negative entries:  {100 * found['negative']:.2f} %",
        f"zero entries:      {100 * found['zero']:.2f} %",
        f"‖A - P‖ / ‖P‖:     {found['distance']:.4f}, where P is softmax's matrix",
        "",
        f"- {said(found['inputs'])}",
    ]
    if found["parameters"]:
        seed = "" if found["seed"] is None else f", seed {found['seed']}"
        lines.append(f"- untrained: its {found['parameters']:,} parameters have their initial values{seed}")
    elif found["seed"] is not None:
        lines.append(f"- one random draw, seed {found['seed']}")
    return "\n".join(lines)


def _place(found: Mapping[str, Any]) -> str:
    return f"layer {found['layer']}, head {found['head']}, sequence {found['sentence']}"


def _draw(found: Mapping[str, Any], effective: Tensor, exact: Tensor, folder: Path) -> list[Path]:
    saved = [folder / "effective.npy", folder / "exact.npy"]
    for path, matrix in zip(saved, (effective, exact), strict=True):
        np.save(path, matrix.numpy())
    title = f"{said(found['inputs'])}\n{_place(found)}"
    return [*saved, *plot_matrix(effective, exact, folder, name=found["label"], title=title)]
