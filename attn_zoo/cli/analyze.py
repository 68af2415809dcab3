"""``attn-zoo analyze``: analyses of the attention of models and mechanisms."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attn_zoo.analysis.capture import attention_inputs, attention_matrices
from attn_zoo.analysis.effective import effective_matrix, matrix_facts
from attn_zoo.analysis.error import Reference, error_table
from attn_zoo.analysis.inputs import AttentionInputs, build_layers, described, gather, random_inputs
from attn_zoo.analysis.plots import plot_error, plot_matrix, plot_projections, plot_spectrum
from attn_zoo.analysis.projections import measure_projections, projections_table
from attn_zoo.analysis.sources import WEIGHTS, Subject, load_subject
from attn_zoo.analysis.spectrum import spectrum_of, spectrum_table, summary
from attn_zoo.checks import check_seed, check_whole
from attn_zoo.cli.progress import Work, tracked
from attn_zoo.records import describe_environment
from attn_zoo.registry import attentions
from attn_zoo.rows import hyperparameters, rows_of
from attn_zoo.terminal import FORMATS, show, wrap

_MODELS = (
    "minilm (a pretrained sentence encoder), timm/NAME, a file that attn-zoo run weights.after=[STEP] wrote, or a folder with a "
    "model of transformers"
)
_PLAIN = "analyze compares mechanisms in their plain form"
_RANDOM: Mapping[str, Any] = {"length": 256, "heads": 4, "head_dim": 64, "scale": 1.0}
"""Default sizes and scale of random inputs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of ``attn-zoo analyze``."""
    parser.description = "Analyze the attention of models, and how closely mechanisms approximate softmax attention."
    analyses = parser.add_subparsers(required=True, metavar="ANALYSIS")
    for add in (_add_spectrum, _add_projections, _add_error, _add_matrix):
        add(analyses)


def add_results(parser: argparse.ArgumentParser, files: str, handler: Callable[[argparse.Namespace], int]) -> None:
    """Add the options ``--output`` and ``--format`` to the parser of a command, and set the function that runs the command. The
    folder is made first, so that no work is lost if this fails.

    Args:
        files: description of the files that the command writes, for the help text.
    """

    def run(parsed: argparse.Namespace) -> int:
        if parsed.output is not None:
            parsed.output.mkdir(parents=True, exist_ok=True)
        return handler(parsed)

    parser.add_argument("--output", type=Path, metavar="FOLDER", help=f"folder for {files}")
    parser.add_argument("--format", default="terminal", choices=FORMATS)
    parser.set_defaults(handler=run)


def deliver(
    parsed: argparse.Namespace, name: str, found: Mapping[str, Any], text: str, write: Callable[[Path], Sequence[Path]]
) -> int:
    """Print a result and return the exit status 0. If the option ``--output`` names a folder, also write files into this folder and
    print their names.

    Args:
        name: name of the JSON file, without its suffix.
        found: result, which JSON can hold.
        text: the result in the format to print.
        write: function that writes further files into the folder and returns their paths.
    """
    show(text, parsed.format)
    if parsed.output is not None:
        files = [*write(parsed.output), parsed.output / f"{name}.json"]
        files[-1].write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        said = f"written to {parsed.output}: {', '.join(path.name for path in files)}"
        print(wrap(said) if sys.stderr.isatty() else said, file=sys.stderr)
    return 0


def _add_model_inputs(parser: argparse.ArgumentParser, *, length: str, sentences: int | None = None) -> None:
    """Add the options that select the texts or images for a model. ``length`` describes the default length, and ``sentences`` is
    the default number of sequences."""
    parser.add_argument("--text", type=Path, help="file or folder of text: .txt, .md, .rst or .jsonl, also packed as .xz or .gz")
    parser.add_argument("--length", type=int, help=f"tokens in a sequence (default: {length})")
    if sentences is not None:
        words = f"number of sequences to average over (default: {sentences})"
        parser.add_argument("--sentences", type=int, default=sentences, help=words)
    parser.add_argument(
        "--weights", default="auto", choices=WEIGHTS, help="weights of the model; only pretrained downloads them (default: auto)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of inputs, of random weights, and of the first draw (default: 0)")


def _add_inputs(parser: argparse.ArgumentParser, sentences: int | None = None) -> None:
    """Add the options that select the inputs on which mechanisms are compared."""
    parser.add_argument("--inputs", default="random", metavar="random | MODEL", help=f"random, or {_MODELS} (default: random)")
    _add_model_inputs(parser, length=f"{_RANDOM['length']}; for a model, up to 512", sentences=sentences)
    parser.add_argument("--heads", type=int, help=f"number of heads of random inputs (default: {_RANDOM['heads']})")
    parser.add_argument("--head-dim", type=int, help=f"width of a head of random inputs (default: {_RANDOM['head_dim']})")
    parser.add_argument("--scale", type=float, help="standard deviation of the scores q·k / √d of random inputs (default: 1)")
    parser.add_argument(
        "--causal", action="store_true", help="causal attention on random inputs: each position sees only itself and earlier ones"
    )


def _load(parsed: argparse.Namespace, model: str) -> Subject:
    """Return a model and its inputs, and show progress while they are loaded."""
    check_seed(parsed.seed)
    with Work(f"loading {model}"):
        return load_subject(model, parsed.sentences, parsed.length, text=parsed.text, weights=parsed.weights, seed=parsed.seed)


def _layers_of(subject: Subject) -> list[AttentionInputs]:
    """Return the queries, keys and values of each layer of a model for all its inputs."""
    batches = tracked(subject.batches, f"queries, keys and values of {subject.name}")
    return gather([attention_inputs(subject.model, batch) for batch in batches])


def _inputs_of(parsed: argparse.Namespace) -> tuple[list[AttentionInputs], dict[str, Any]]:
    """Return the queries, keys and values of each layer for all sequences, and a description of them as plain data.

    Raises:
        ValueError, OSError, UnknownNameError: an option does not apply to these inputs, or the inputs cannot be loaded.
    """
    drawn = parsed.inputs == "random"
    of_models, of_random = {"text": None, "weights": "auto"}, {"heads": None, "head_dim": None, "scale": None, "causal": False}
    for option, default in (of_models if drawn else of_random).items():
        if getattr(parsed, option) != default:
            name, only = option.replace("_", "-"), "with a model" if drawn else "with random inputs"
            raise ValueError(f"--{name} can be given only {only}; got --inputs {parsed.inputs}. Leave --{name} out")
    facts: dict[str, Any]
    if drawn:
        check_seed(parsed.seed)
        length, heads, width, scale = (
            default if (value := getattr(parsed, name)) is None else value for name, default in _RANDOM.items()
        )
        layers = [random_inputs(parsed.sentences, heads, length, width, scale=scale, seed=parsed.seed, causal=parsed.causal)]
        facts = {"name": "random", "weights": None, "data": "independent normal numbers", "scale": scale}
    else:
        subject = _load(parsed, parsed.inputs)
        layers = _layers_of(subject)
        facts = {"name": subject.name, "weights": subject.weights, "data": subject.data, "scale": None}
    geometry = layers[0].geometry
    shape = {"layers": len(layers), "sequences": len(layers[0].query), "heads": geometry.heads}
    return layers, {**facts, **shape, "length": geometry.keys, "head_dim": geometry.head_dim, "causal": geometry.causal}


def _add_spectrum(analyses: Any) -> None:
    parser = analyses.add_parser(
        "spectrum",
        help="singular values of the attention matrices of each layer and head",
        description="Print, for each layer and head, the sum of the k largest singular values of P = softmax(Q K^T / sqrt d) as a "
        "share of the sum of all, averaged over sequences (Linformer, Figure 1). k is 128, or a quarter of shorter sequences.",
    )
    parser.add_argument("--model", default="minilm", help=f"{_MODELS} (default: minilm)")
    _add_model_inputs(parser, length="512, or the positions that the model has", sentences=32)
    add_results(parser, "spectrum.json, .npy (shares by layer, head and k), .png and .svg", _spectrum)


def _spectrum(parsed: argparse.Namespace) -> int:
    subject = _load(parsed, parsed.model)
    batches = tracked(subject.batches, "attention spectra")
    spectrum = spectrum_of(attention_matrices(subject.model, batch) for batch in batches)
    facts = {"model": subject.name, "weights": subject.weights, "trained": subject.trained, "data": subject.data}
    found = {**facts, **summary(spectrum), "environment": describe_environment("cpu")}
    title = f"{found['model']}, weights {found['weights']}\n{found['sequences']} sequences of {found['data']}"

    def write(folder: Path) -> list[Path]:
        np.save(folder / "spectrum.npy", spectrum.mean.numpy())
        return [folder / "spectrum.npy", *plot_spectrum(spectrum, folder, title=title)]

    return deliver(parsed, "spectrum", found, spectrum_table(found, parsed.format), write)


def _add_projections(analyses: Any) -> None:
    parser = analyses.add_parser(
        "projections",
        help="error of attention over projected keys and values at several projected lengths k, for four kinds of projection",
        description="Print the error ||Y - Y_exact|| / ||Y_exact|| of softmax attention to k projected keys and values, per head "
        "and beside the construction of Theorem 1 (Linformer, Section 3). The sequences were not used for fitting. Several models, "
        "such as the weights of one run after several steps, get a table each and share a picture.",
    )
    parser.add_argument("--model", nargs="+", default=["minilm"], help=f"{_MODELS} (default: minilm)")
    _add_model_inputs(parser, length="512, or the positions that the model has", sentences=32)
    parser.add_argument("--k", type=int, nargs="+", help="projected lengths (default: 1/32 to 1/2 of the length)")
    add_results(parser, "projections.json, .png and .svg", _projections)


def _projections(parsed: argparse.Namespace) -> int:
    models = []
    for name in parsed.model:
        subject = _load(parsed, name)
        layers = _layers_of(subject)
        n = layers[0].geometry.keys
        lengths = parsed.k or sorted({n // part for part in (32, 16, 8, 4, 2) if n // part})
        facts = {"model": subject.name, "weights": subject.weights, "data": subject.data, "length": n}
        models.append({**facts, "sequences": len(subject.batches), **measure_projections(layers, lengths, seed=parsed.seed)})
    found = {"analysis": "projections", "models": models, "environment": describe_environment("cpu")}
    return deliver(parsed, "projections", found, projections_table(found, parsed.format), partial(plot_projections, found))


def _add_error(analyses: Any) -> None:
    parser = analyses.add_parser(
        "error",
        help="how far outputs of mechanisms are from those of softmax attention on the same inputs, and at what cost",
        description="Print ||Y - Y_exact|| / ||Y_exact|| for each mechanism, averaged over layers, heads, sequences and draws. Y "
        "is the output of a head, and Y_exact that of softmax attention in float64. Costs are those of one layer and one sequence, "
        "counted by formula. Learnable parameters have their initial values, and are marked as untrained.",
    )
    curves = "OPTION=A|B is a curve with one row per value"
    words = f"mechanisms to compare: NAME or NAME[OPTION=VALUE,...]; {curves} (default: all)"
    parser.add_argument("--attention", nargs="+", default=["all"], metavar="ROW", help=words)
    _add_inputs(parser, sentences=8)
    parser.add_argument("--seeds", type=int, default=3, help="number of draws of random mechanisms (default: 3)")
    add_results(parser, "error.json, .png and .svg", _error)


def _error(parsed: argparse.Namespace) -> int:
    rows = rows_of(attentions() if parsed.attention == ["all"] else parsed.attention, plain=_PLAIN)
    check_whole("--seeds", parsed.seeds)
    layers, inputs = _inputs_of(parsed)
    reference = Reference(layers)
    measured, refused = [], []
    for row, dial in tracked(zip(rows, hyperparameters(rows), strict=True), "approximation errors"):
        try:
            measured.append({**reference.error(row, seeds=parsed.seeds, first_seed=parsed.seed), "dial": dial})
        except ValueError as refusal:
            refused.append({"attention": row.attention, "label": str(row), "reason": str(refusal)})
    if not measured:
        reasons = "; ".join(f"{each['label']}: {each['reason']}" for each in refused)
        raise ValueError(f"none of the mechanisms supports these inputs: {reasons}")
    found = {
        "analysis": "error",
        "inputs": inputs,
        "uniform": reference.uniform,
        "softmax": {"flops": reference.flops, "activation_bytes": reference.activation_bytes},
        "rows": measured,
        "refused": refused,
        "environment": describe_environment("cpu"),
    }
    return deliver(parsed, "error", found, error_table(found, parsed.format), partial(plot_error, found, title=described(inputs)))


def _add_matrix(analyses: Any) -> None:
    parser = analyses.add_parser(
        "matrix",
        help="the effective attention matrix of a mechanism, beside that of softmax on the same inputs",
        description="Print the matrix A that a mechanism applies to the values (Y = A V) for given queries and keys, beside the "
        "matrix P of softmax. If the output is not of the form A V, an error says why.",
    )
    parser.add_argument("--attention", required=True, metavar="ROW", help="mechanism: NAME or NAME[OPTION=VALUE,...]")
    _add_inputs(parser)
    parser.add_argument("--layer", type=int, default=0, help="layer of the model, counted from 0 (default: 0)")
    parser.add_argument("--head", type=int, default=0, help="head, counted from 0 (default: 0)")
    add_results(parser, "matrix.json, .png, .svg, effective.npy and exact.npy", _matrix)
    parser.set_defaults(sentences=1)


def _matrix(parsed: argparse.Namespace) -> int:
    rows = [] if parsed.attention == "all" else rows_of(parsed.attention, plain=_PLAIN)
    if len(rows) != 1:
        raise ValueError(
            f"--attention must name one mechanism; got {parsed.attention!r}. Use attn-zoo analyze error to compare several"
        )
    (row,), at, head = rows, parsed.layer, parsed.head
    layers, inputs = _inputs_of(parsed)
    for option, there in (("layer", inputs["layers"]), ("head", inputs["heads"])):
        if not 0 <= (given := getattr(parsed, option)) < there:
            raise ValueError(f"--{option} must be from 0 to {there - 1}, because it is counted from 0; got {given}")
    built, drawn = build_layers(row.attention, layers, row.options, parsed.seed)
    softmax, _ = build_layers("softmax", layers, {})
    effective, exact = (effective_matrix(stack[at], layers[at])[0, head] for stack in (built, softmax))
    found = {
        "analysis": "matrix",
        "attention": row.attention,
        "label": str(row),
        "seed": parsed.seed if drawn else None,
        "parameters": sum(p.numel() for p in built[at].parameters() if p.requires_grad),
        "inputs": inputs,
        "layer": at,
        "head": head,
        **matrix_facts(effective, exact),
        "environment": describe_environment("cpu"),
    }

    def write(folder: Path) -> list[Path]:
        saved = [folder / "effective.npy", folder / "exact.npy"]
        for path, matrix in zip(saved, (effective, exact), strict=True):
            np.save(path, matrix.numpy())
        title = f"{described(inputs)}\nlayer {at}, head {head}"
        return [*saved, *plot_matrix(effective, exact, folder, name=str(row), title=title)]

    return deliver(parsed, "matrix", found, _matrix_text(found), write)


def _matrix_text(found: Mapping[str, Any]) -> str:
    lines = [
        f"{found['label']}, layer {found['layer']}, head {found['head']}",
        f"row sums:          {found['row_sum_least']:.4f} to {found['row_sum_most']:.4f}, mean {found['row_sum_mean']:.4f}",
        f"negative entries:  {100 * found['negative']:.2f} %",
        f"zero entries:      {100 * found['zero']:.2f} %",
        f"‖A - P‖ / ‖P‖:     {found['distance']:.4f}, where P is softmax's matrix",
        "",
        f"- {described(found['inputs'])}",
    ]
    if found["parameters"]:
        seed = "" if found["seed"] is None else f", seed {found['seed']}"
        lines.append(f"- untrained: its {found['parameters']:,} parameters have their initial values{seed}")
    elif found["seed"] is not None:
        lines.append(f"- one random draw, seed {found['seed']}")
    return "\n".join(lines)
