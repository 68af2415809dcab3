"""``attn-zoo analyze error``: how far the outputs of mechanisms are from exact attention on the same inputs, and at what cost."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from attn_zoo.analysis.error import ApproximationError, Reference
from attn_zoo.analysis.plot_error import plot_error
from attn_zoo.bench.tables import explained
from attn_zoo.checks import check_whole
from attn_zoo.cli.analyze.inputs import PLAIN, add_inputs, inputs_of, said
from attn_zoo.cli.analyze.results import add_results, as_csv, as_table, deliver
from attn_zoo.cli.progress import tracked
from attn_zoo.records import describe_environment
from attn_zoo.registry import attentions, card, stated_options
from attn_zoo.rows import RowName, hyperparameters, rows_of
from attn_zoo.terminal import short

_COLUMNS = (
    *("label", "attention", "dial", "error", "of_uniform", "over_heads", "over_draws", "draws", "tied_error"),
    *("flops", "flops_share", "activation_bytes", "activation_share", "parameters", "notes"),
)


def add_to(analyses: Any) -> None:
    """Add the subcommand ``error`` to ``attn-zoo analyze``."""
    error = analyses.add_parser(
        "error",
        help="how far outputs of mechanisms are from those of softmax attention on the same inputs, and at what cost",
        description="Print ||Y - Y_exact|| / ||Y_exact|| for each mechanism, averaged over layers, heads, sequences and draws. Y "
        "is the output of a head, and Y_exact that of softmax attention in float64. Costs are those of one layer and one sequence, "
        "counted by formula. Learnable parameters have their initial values, and are marked as untrained.",
    )
    curves = "OPTION=A|B is a curve with one row per value"
    words = f"mechanisms to compare: NAME or NAME[OPTION=VALUE,...]; {curves} (default: all)"
    error.add_argument("--attention", nargs="+", default=["all"], metavar="ROW", help=words)
    add_inputs(error, sentences=8)
    error.add_argument("--seeds", type=int, default=3, help="number of draws of random mechanisms (default: 3)")
    add_results(error, "error.csv, .json, .png and .svg", ("github", "csv", "json"), _error)


def _error(parsed: argparse.Namespace) -> int:
    rows = rows_of(attentions() if parsed.attention == ["all"] else parsed.attention, plain=PLAIN)
    check_whole("--seeds", parsed.seeds)
    layers, inputs = inputs_of(parsed)
    found = measure_error(Reference(layers), rows, inputs, seeds=parsed.seeds, first_seed=parsed.seed)
    draw = partial(plot_error, found, title=said(found["inputs"]))
    return deliver(parsed, "error", found, partial(error_table, found), draw, {"error.csv": error_table(found, "csv")})


def measure_error(
    reference: Reference, compared: Sequence[RowName], inputs: Mapping[str, Any], *, seeds: int = 1, first_seed: int = 0
) -> dict[str, Any]:
    """Return how far the outputs of the mechanisms ``compared`` are from those of softmax attention, as a dictionary for JSON. Its
    entry ``refused`` lists the mechanisms that do not support these inputs, with the reasons.

    Raises:
        ValueError: no mechanism supports these inputs.
    """
    softmax = reference.error("softmax", {})
    uniform = reference.error("uniform", {}).mean
    rows, refused = [], []
    for row, curve in tracked(zip(compared, hyperparameters(compared), strict=True), "approximation errors"):
        try:
            error = reference.error(row.attention, row.options, seeds=seeds, first_seed=first_seed)
        except ValueError as refusal:
            refused.append({"attention": row.attention, "label": str(row), "reason": str(refusal)})
            continue
        rows.append({**_facts(row, error, softmax, uniform), "dial": curve})
    if not rows:
        reasons = "; ".join(f"{r['label']}: {r['reason']}" for r in refused)
        raise ValueError(f"none of the mechanisms supports these inputs: {reasons}")
    return {
        "analysis": "error",
        "inputs": dict(inputs),
        "uniform": uniform,
        "softmax": {"flops": softmax.flops, "activation_bytes": softmax.activation_bytes},
        "rows": rows,
        "refused": refused,
        "environment": describe_environment("cpu"),
    }


def _facts(row: RowName, error: ApproximationError, softmax: ApproximationError, uniform: float) -> dict[str, Any]:
    kept, whole = error.activation_bytes, softmax.activation_bytes
    return {
        "label": str(row),
        "attention": row.attention,
        "options": {name: value for name, value in stated_options(card(row.attention), row.options).items() if value != ""},
        "control": card(row.attention).control,
        "error": error.mean,
        "of_uniform": error.mean / uniform if uniform else None,
        "over_heads": error.over_heads,
        "over_draws": error.over_draws,
        "draws": len(error.errors),
        "by_layer": error.by_layer,
        "tied_error": error.tied,
        "flops": error.flops,
        "flops_share": error.flops / softmax.flops,
        "activation_bytes": kept,
        "activation_share": None if kept is None or whole is None else kept / whole,
        "parameters": error.parameters,
        "streams": dict(error.streams),
        "notes": ", ".join(_notes(row.attention, error)),
        "warnings": list(error.warnings),
    }


def _notes(name: str, error: ApproximationError) -> list[str]:
    notes = ["control"] if card(name).control else []
    if error.parameters:
        notes.append(f"untrained ({error.parameters:,} parameters)")
    if error.streams:
        notes.append("untrained (" + ", ".join(error.streams) + ")")
    if card(name).can.shares_query_key:
        notes.append("keys = queries")
    elif unread := [f"{part}s" for part in ("query", "key") if part not in error.reads]:
        notes.append(f"reads no {' and no '.join(unread)}".replace("querys", "queries"))
    return notes


def error_table(found: Mapping[str, Any], format: str) -> str:
    """Return the result of ``measure_error`` as CSV, or as a table with a legend. Both begin with the smallest error."""
    rows = sorted(found["rows"], key=lambda row: row["error"])
    if format == "csv":
        return as_csv([_COLUMNS, *([row[name] for name in _COLUMNS] for row in rows)])
    head = ["attention", "error", "over heads", "over draws", "of uniform", "FLOPs", "of softmax", "saved, of softmax", "notes"]
    return as_table(list(map(_cells, rows)), head, format, _legend(found, rows), left=1)


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["label"],
        *(_number(row[name]) for name in ("error", "over_heads", "over_draws", "of_uniform")),
        short(row["flops"]),
        _share(row["flops_share"]),
        "-" if row["activation_share"] is None else _share(row["activation_share"]),
        row["notes"] if row["tied_error"] is None else f"{row['notes']}: {_number(row['tied_error'])}",
    ]


def _share(value: float) -> str:
    """Format a share as a percentage with three digits."""
    return f"{100 * value:,.0f} %" if value >= 1 else f"{100 * value:.3g} %"


def _number(value: float | None) -> str:
    """Format with three digits after the point; rounding errors of float64 count as 0."""
    return "-" if value is None else "0" if value < 1e-9 else f"{value:.3f}"


def _legend(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        f"{said(found['inputs'])}.",
        f"softmax has {short(found['softmax']['flops'])} FLOPs; the uniform average has an error of {_number(found['uniform'])}. "
        f"{explained('analyze-error')}",
    ]
    if warned := [row["label"] for row in rows if row["warnings"]]:
        lines.append(f"Settings that do not suit this length: {', '.join(warned)}.")
    lines += [f"{refused['label']} is left out: {refused['reason']}." for refused in found["refused"]]
    return lines
