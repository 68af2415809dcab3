"""``attn-zoo analyze spectrum``: singular values of a model's attention matrices, as a table, as CSV and as a figure."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from attn_zoo.analysis import Spectrum, SpectrumAverage, attention_matrices, default_index
from attn_zoo.analysis.plot import plot_spectrum
from attn_zoo.analysis.sources import Subject
from attn_zoo.bench.tables import explained
from attn_zoo.cli.analyze.inputs import MODELS, add_model_inputs, load, request_of
from attn_zoo.cli.analyze.results import add_results, as_csv, as_table, deliver
from attn_zoo.cli.progress import tracked
from attn_zoo.records import describe_environment

_SHARE = 0.9
_COLUMNS = ("layer", "least", "mean", "most", "rank_least", "rank_mean", "rank_most")


def add_to(analyses: Any) -> None:
    """Add the subcommand ``spectrum`` to ``attn-zoo analyze``."""
    spectrum = analyses.add_parser(
        "spectrum",
        help="singular values of the attention matrices of each layer and head",
        description="Print, for each layer and head, the sum of the k largest singular values of P = softmax(Q K^T / sqrt d) as a "
        "share of the sum of all, averaged over sequences (Linformer, Figure 1).",
    )
    spectrum.add_argument("--model", default="minilm", help=f"{MODELS} (default: minilm)")
    add_model_inputs(spectrum, sentences=32)
    spectrum.add_argument("--length", type=int, help="tokens in a sequence (default: 512, or the positions that the model has)")
    spectrum.add_argument(
        "--index",
        type=int,
        help="number k of singular values whose share is printed (default: 128, or a quarter of the length)",
    )
    spectrum.add_argument("--seed", type=int, default=0, help="seed of random weights (default: 0)")
    spectrum.add_argument("--log-index", action="store_true", help="draw the curves over a logarithmic k")
    add_results(spectrum, "spectrum.csv, .json, .png and .svg", ("github", "csv"), _spectrum)


def _spectrum(parsed: argparse.Namespace) -> int:
    if parsed.index is not None and (parsed.index < 1 or (parsed.length is not None and parsed.index > parsed.length)):
        raise ValueError(f"--index must be from 1 to --length, the number of singular values of a matrix; got {parsed.index}")
    request = request_of(parsed, parsed.model)
    subject = load(request)
    if not subject.trained and request.weights != "random":
        fetched = "Add --weights pretrained to download trained weights. " if request.model.startswith("timm/") else ""
        raise ValueError(
            f"{request.model} has random weights, so its attention is almost uniform. {fetched}Add --weights random to "
            "analyze the random weights nevertheless"
        )
    spectrum = measure_spectrum(subject, parsed.index)
    index = default_index(spectrum.rank) if parsed.index is None else parsed.index
    found = summary(spectrum, index, subject)
    title = f"{found['model']}, weights {found['weights']}\n{found['sequences']} sequences of {found['data']}"
    draw = partial(plot_spectrum, spectrum, index, title=title, log_index=parsed.log_index)
    return deliver(parsed, "spectrum", found, partial(spectrum_table, found), draw, {"spectrum.csv": _curves(spectrum)})


def measure_spectrum(subject: Subject, index: int | None) -> Spectrum:
    """Return the cumulative singular values of the attention matrices of every head in a model, averaged over all sequences.

    Args:
        index: how many of the largest singular values ``summary`` will add up, to check that each matrix has that many. None skips
            this check.

    Raises:
        ValueError: ``index`` is less than 1, or a matrix has fewer singular values; raised after the first batch.
    """
    average = SpectrumAverage()
    for at, batch in enumerate(tracked(subject.batches, "attention spectra")):
        average.add(attention_matrices(subject.model, batch))
        if at == 0 and index is not None:
            average.result().check_index(index)
    return average.result()


def summary(spectrum: Spectrum, index: int, subject: Subject) -> dict[str, Any]:
    """Return a summary of the cumulative singular values, and a description of the model and its inputs, as a dictionary for JSON.

    For each layer, the summary has the minimum, mean and maximum over heads of two numbers:

    - the sum of the ``index`` largest singular values, divided by the sum of all;
    - how many of the largest singular values make up 90 % of the sum of all.
    """
    return {
        "model": subject.name,
        "weights": subject.weights,
        "trained": subject.trained,
        "data": subject.data,
        "sequences": spectrum.sequences,
        "rank": spectrum.rank,
        "index": index,
        "layers": [dict(zip(_COLUMNS, row, strict=True)) for row in _rows(spectrum, index)],
        "standard_error": float(spectrum.standard_error(index).max()) if spectrum.sequences > 1 else None,
        "environment": describe_environment("cpu"),
    }


def spectrum_table(found: Mapping[str, Any], format: str) -> str:
    """Return the result of ``summary`` as a table with one row per layer, or as CSV."""
    rows = [[layer[name] for name in _COLUMNS] for layer in found["layers"]]
    if format == "csv":
        return as_csv([_COLUMNS, *rows])
    index = found["index"]
    head = ["layer", f"least share at k = {index}", "mean", "most", "least k for 90 %", "mean", "most"]
    body = [[str(row[0]), *(f"{cell:.3f}" for cell in row[1:4]), *(f"{cell:.0f}" for cell in row[4:])] for row in rows]
    notes = [
        f"{found['model']} (weights: {found['weights']}); {found['sequences']} sequence{'s' * (found['sequences'] > 1)} of "
        f"{found['data']}; rank at most {found['rank']}.",
    ]
    if not found["trained"]:
        notes.append("The model is untrained, and initial weights often attend almost uniformly, which is of rank one.")
    error = f"; a head's standard error is at most {found['standard_error']:.4f}" if found["standard_error"] is not None else ""
    notes.append(
        f"With equal singular values, the share would be {index / found['rank']:.3f}{error}. {explained('analyze-spectrum')}"
    )
    return as_table(body, head, format, notes)


def _rows(spectrum: Spectrum, index: int) -> Iterator[list[Any]]:
    shares, ranks = spectrum.at(index), spectrum.rank_for(_SHARE).double()
    layers = [(str(layer), shares[layer], ranks[layer]) for layer in range(len(shares))]
    for name, share, rank in [*layers, ("all", shares.flatten(), ranks.flatten())]:
        yield [name, *(float(figure) for of in (share, rank) for figure in (of.min(), of.mean(), of.max()))]


def _curves(spectrum: Spectrum) -> str:
    """Return the cumulative singular values of every head as CSV."""
    curves = ((layer, head, curve) for layer, heads in enumerate(spectrum.mean.tolist()) for head, curve in enumerate(heads))
    rows = [(layer, head, k, f"{value:.9g}") for layer, head, curve in curves for k, value in enumerate(curve, start=1)]
    return as_csv([("layer", "head", "index", "value"), *rows])
