"""``attn-zoo analyze projections``: error of Linformer's attention to projected keys and values, at several projected lengths."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from attn_zoo.analysis.captured import attention_inputs
from attn_zoo.analysis.inputs import gather
from attn_zoo.analysis.plot_projections import plot_projections
from attn_zoo.analysis.projections import Kind, ProjectionErrors, least_length, measure_projections
from attn_zoo.analysis.sources import Subject
from attn_zoo.bench.tables import explained
from attn_zoo.checks import check_whole
from attn_zoo.cli.analyze.inputs import MODELS, add_model_inputs, load, request_of
from attn_zoo.cli.analyze.results import add_results, as_csv, as_table, deliver
from attn_zoo.cli.progress import tracked
from attn_zoo.records import describe_environment

_COLUMNS = ("model", "weights", "kind", "k", "error", "over_heads")
_FRACTIONS = (32, 16, 8, 4, 2)
"""Default values of n / k: the length divided by the projected length."""
_BEST = 2 / 3
"""Error ε for which Theorem 1 of Linformer needs the smallest projected length, k = 5 log n / (ε² - ε³)."""


def add_to(analyses: Any) -> None:
    """Add the subcommand ``projections`` to ``attn-zoo analyze``."""
    parser = analyses.add_parser(
        "projections",
        help="error of attention over projected keys and values at several projected lengths k, for four kinds of projection",
        description="Print the error ||Y - Y_exact|| / ||Y_exact|| of softmax attention to k projected keys and values, per head "
        "and beside the construction of Theorem 1 (Linformer, Section 3). The sequences were not used for fitting. Several models, "
        "such as the weights of one run after several steps, get a table each and share a picture.",
    )
    parser.add_argument("--model", nargs="+", default=["minilm"], help=f"{MODELS} (default: minilm)")
    add_model_inputs(parser, sentences=32)
    parser.add_argument("--length", type=int, help="tokens in a sequence (default: 512, or the positions that the model has)")
    parser.add_argument("--k", type=int, nargs="+", help="projected lengths (default: 1/32 to 1/2 of the length)")
    parser.add_argument("--steps", type=int, default=200, help="number of steps in which E and F are learned (default: 200)")
    parser.add_argument("--draws", type=int, default=3, help="number of draws of random projections (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of draws and of random weights (default: 0)")
    add_results(parser, "projections.csv, .json, .png and .svg", ("github", "csv", "json"), _projections)


def _projections(parsed: argparse.Namespace) -> int:
    check_whole("--steps", parsed.steps)
    check_whole("--draws", parsed.draws)
    models = []
    for name in parsed.model:
        subject = load(request_of(parsed, name))
        batches = tracked(subject.batches, f"queries, keys and values of {subject.name}")
        layers = gather([attention_inputs(subject.model, batch) for batch in batches])
        n = layers[0].geometry.keys
        lengths = parsed.k or sorted({n // part for part in _FRACTIONS if n // part})
        errors = measure_projections(layers, lengths, draws=parsed.draws, steps=parsed.steps, seed=parsed.seed)
        models.append(described(subject, errors, n, len(layers[0].query)))
    found = {"analysis": "projections", "models": models, "environment": describe_environment("cpu")}
    table, csv = partial(projections_table, found), {"projections.csv": projections_table(found, "csv")}
    return deliver(parsed, "projections", found, table, partial(plot_projections, found), csv)


def described(subject: Subject, errors: ProjectionErrors, length: int, sequences: int) -> dict[str, Any]:
    """Return the errors that were measured for one model, and a description of the model and its inputs, as a dictionary for
    JSON."""
    by_head = {kind: errors.errors[kind].mean(dim=(1, 3)).flatten(1) for kind in Kind}
    return {
        "model": subject.name,
        "weights": subject.weights,
        "data": subject.data,
        "sequences": sequences,
        "length": length,
        "k": list(errors.lengths),
        "error": {kind.value: errors.mean(kind) for kind in Kind},
        "over_heads": {kind.value: by_head[kind].std(dim=1, correction=0).tolist() for kind in Kind},
        "exponent": {kind.value: errors.exponent(kind) for kind in Kind},
        "share": errors.shares.mean(dim=(1, 2)).tolist(),
        "uniform": errors.uniform,
        "theorem_from": least_length(length, _BEST),
    }


def projections_table(found: Mapping[str, Any], format: str) -> str:
    """Return the errors as CSV, or as one table per model. A table has one row per kind of projection and one column per projected
    length."""
    if format == "csv":
        return as_csv([_COLUMNS, *(row for model in found["models"] for row in _rows(model))])
    return "\n\n".join(_table(model, format) for model in found["models"])


def _rows(model: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    return [
        (model["model"], model["weights"], kind.value, k, f"{error:.6g}", f"{spread:.6g}")
        for kind in Kind
        for k, error, spread in zip(model["k"], model["error"][kind.value], model["over_heads"][kind.value], strict=True)
    ]


def _table(model: Mapping[str, Any], format: str) -> str:
    head = [f"{model['model']}, {model['weights']}", *(f"k = {k}" for k in model["k"]), "falls as"]
    body = [
        [kind.value, *(f"{error:.3f}" for error in model["error"][kind.value]), _power(model["exponent"][kind.value])]
        for kind in Kind
    ]
    body.append(["share of singular values", *(f"{share:.3f}" for share in model["share"]), "-"])
    notes = [
        f"{model['sequences']} sequences of {model['data']}; n = {model['length']}.",
        f"The average of all values has an error of {model['uniform']:.3f}. Theorem 1 gives no bound below k = "
        f"{model['theorem_from']:.0f}. {explained('analyze-projections')}",
    ]
    return as_table(body, head, format, notes)


def _power(exponent: float | None) -> str:
    return "-" if exponent is None else f"k^{exponent:.2f}"
