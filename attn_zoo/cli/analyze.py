"""``attn-zoo analyze spectrum``: how low-rank a model's attention is, as a table, as CSV and as the paper's figure."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from tabulate import tabulate

from attn_zoo.analysis import Spectrum, SpectrumAverage, attention_matrices, default_index
from attn_zoo.analysis.plot import missing_plots, plot_spectrum
from attn_zoo.analysis.sources import Request, Subject, load_subject
from attn_zoo.records import describe_environment

_STYLES = {"terminal": "simple", "github": "github"}
_SHARE = 0.9
_COLUMNS = ("layer", "least", "mean", "most", "rank_least", "rank_mean", "rank_most")


def analyze_spectrum(parsed: argparse.Namespace) -> int:
    """Measure, write where asked, print.

    Raises:
        ValueError, OSError, UnknownNameError: bad input, said before the model runs.
    """
    if parsed.index is not None and (parsed.index < 1 or (parsed.length is not None and parsed.index > parsed.length)):
        raise ValueError(f"--index counts singular values, so it lies in 1 to --length; got {parsed.index}")
    request = Request(parsed.model, parsed.sentences, parsed.length, parsed.text, parsed.images, parsed.weights, parsed.seed)
    if parsed.output is not None:
        parsed.output.mkdir(parents=True, exist_ok=True)
    subject = load_subject(request)
    spectrum = measure_spectrum(subject, parsed.index)
    index = default_index(spectrum.rank) if parsed.index is None else parsed.index
    print(spectrum_table(spectrum, index, subject, parsed.format))
    if parsed.output is not None:
        _write(spectrum, index, subject, parsed.output, parsed.log_index)
    return 0


def measure_spectrum(subject: Subject, index: int | None) -> Spectrum:
    """Run every sequence through the model; a bad index is refused after the first."""
    average = SpectrumAverage()
    for at, batch in enumerate(_tracked(subject.batches)):
        average.add(attention_matrices(subject.model, batch))
        if at == 0 and index is not None:
            average.result().check_index(index)
    return average.result()


def spectrum_table(spectrum: Spectrum, index: int, subject: Subject, format: str) -> str:
    """Least, mean and most over heads, layer by layer, of the share at ``index`` and of the rank that holds 90 %."""
    rows = list(_rows(spectrum, index))
    if format == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([_COLUMNS, *rows])
        return out.getvalue().rstrip("\n")
    head = ["layer", f"least share at k = {index}", "mean", "most", "least k for 90 %", "mean", "most"]
    body = [[str(row[0]), *(f"{cell:.3f}" for cell in row[1:4]), *(f"{cell:.0f}" for cell in row[4:])] for row in rows]
    table = tabulate(body, head, tablefmt=_STYLES[format], disable_numparse=True, colalign=("left", *["right"] * 6))
    notes = [
        f"model {subject.name}, weights {subject.weights}",
        f"{spectrum.sequences} sequences of {subject.data}; matrices of rank {spectrum.rank} at most",
        f"share = sum of the k largest singular values over the sum of all; were all equal, {index / spectrum.rank:.3f}",
    ]
    if not subject.trained:
        notes.append("untrained: initial weights often attend almost uniformly, which is of rank one; nothing here was learned")
    if spectrum.sequences > 1:
        notes.append(f"standard error of a head's share over sequences: at most {float(spectrum.standard_error(index).max()):.4f}")
    return table + "\n\n" + "\n".join(f"- {note}" for note in notes)


def _rows(spectrum: Spectrum, index: int) -> Iterator[list[Any]]:
    shares, ranks = spectrum.at(index), spectrum.rank_for(_SHARE).double()
    layers = [(str(layer), shares[layer], ranks[layer]) for layer in range(len(shares))]
    for name, share, rank in [*layers, ("all", shares.flatten(), ranks.flatten())]:
        yield [name, *(float(figure) for of in (share, rank) for figure in (of.min(), of.mean(), of.max()))]


def _write(spectrum: Spectrum, index: int, subject: Subject, folder: Path, log_index: bool) -> None:
    with (folder / "spectrum.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("layer", "head", "index", "value"))
        for layer, heads in enumerate(spectrum.mean.tolist()):
            for head, curve in enumerate(heads):
                writer.writerows((layer, head, k, f"{value:.9g}") for k, value in enumerate(curve, start=1))
    about = {
        "model": subject.name,
        "weights": subject.weights,
        "data": subject.data,
        "sequences": spectrum.sequences,
        "rank": spectrum.rank,
        "index": index,
        "layers": [dict(zip(_COLUMNS, row, strict=True)) for row in _rows(spectrum, index)],
        "environment": describe_environment("cpu"),
    }
    (folder / "spectrum.json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    written = ["spectrum.csv", "spectrum.json"]
    if reason := missing_plots():
        print(reason, file=sys.stderr)
    else:
        title = f"{subject.name}, weights {subject.weights}\n{spectrum.sequences} sequences of {subject.data}"
        written += [path.name for path in plot_spectrum(spectrum, index, folder, title=title, log_index=log_index)]
    print(f"written to {folder}: {', '.join(written)}", file=sys.stderr)


def _tracked(batches: Sequence[Any]) -> Iterable[Any]:
    console = Console(stderr=True)
    return track(batches, "attention spectra", console=console, transient=True, disable=not console.is_terminal)
