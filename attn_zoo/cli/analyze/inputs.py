"""Inputs of analyses: random numbers, or the queries, keys and values of a model. Command-line options select the inputs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attn_zoo.analysis.captured import attention_inputs
from attn_zoo.analysis.inputs import AttentionInputs, gather, random_inputs
from attn_zoo.analysis.sources import WEIGHTS, Request, Subject, load_subject
from attn_zoo.checks import check_seed
from attn_zoo.cli.progress import Work, tracked
from attn_zoo.contract import UnsupportedError

MODELS = (
    "minilm (a pretrained sentence encoder), timm/NAME, task/NAME (our network, untrained), a file that attn-zoo run "
    "weights.after=[STEP] wrote, or a folder with a model of transformers"
)
PLAIN = "analyze compares mechanisms in their plain form"
_RANDOM: Mapping[str, Any] = {"length": 256, "heads": 4, "head_dim": 64, "scale": 1.0}
"""Default sizes and scale of random inputs."""


def add_model_inputs(parser: argparse.ArgumentParser, sentences: int) -> None:
    """Add the options that select the texts or images for a model. ``sentences`` is the default number of sequences."""
    parser.add_argument("--text", type=Path, help="file or folder of text: .txt, .md, .rst or .jsonl, also packed as .xz or .gz")
    parser.add_argument("--images", type=Path, help="folder of images for timm/NAME (default: scikit-learn's photographs)")
    parser.add_argument(
        "--sentences", type=int, default=sentences, help=f"number of sequences to average over (default: {sentences})"
    )
    parser.add_argument(
        "--weights", default="auto", choices=WEIGHTS, help="weights of the model; only pretrained downloads them (default: auto)"
    )


def add_inputs(parser: argparse.ArgumentParser, sentences: int) -> None:
    """Add the options that select the inputs on which mechanisms are compared. ``sentences`` is the default number of sequences."""
    parser.add_argument("--inputs", default="random", metavar="random | MODEL", help=f"random, or {MODELS} (default: random)")
    add_model_inputs(parser, sentences)
    parser.add_argument("--length", type=int, help=f"tokens in a sequence (default: {_RANDOM['length']}; for a model, up to 512)")
    parser.add_argument("--heads", type=int, help=f"number of heads of random inputs (default: {_RANDOM['heads']})")
    parser.add_argument("--head-dim", type=int, help=f"width of a head of random inputs (default: {_RANDOM['head_dim']})")
    parser.add_argument("--scale", type=float, help="standard deviation of the scores q·k / √d of random inputs (default: 1)")
    parser.add_argument(
        "--causal", action="store_true", help="causal attention on random inputs: each position sees only itself and earlier ones"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of inputs, of random weights, and of the first draw (default: 0)")


def request_of(parsed: argparse.Namespace, model: str) -> Request:
    """Return a request for the model ``model`` and the inputs that the options select.

    Raises:
        ValueError: the seed is out of its range.
    """
    check_seed(parsed.seed)
    return Request(model, parsed.sentences, parsed.length, parsed.text, parsed.images, parsed.weights, parsed.seed)


def load(request: Request) -> Subject:
    """Return a model and its inputs, and show progress while they are loaded."""
    with Work(f"loading {request.model}"):
        return load_subject(request)


def inputs_of(parsed: argparse.Namespace) -> tuple[list[AttentionInputs], dict[str, Any]]:
    """Return the queries, keys and values of each layer for all sequences, and a description of them as plain data.

    Raises:
        ValueError, OSError, UnknownNameError: an option does not apply to these inputs, or the inputs cannot be loaded.
    """
    if parsed.inputs == "random":
        return _random(parsed)
    for option, default in (("heads", None), ("head_dim", None), ("scale", None), ("causal", False)):
        if getattr(parsed, option) != default:
            name = option.replace("_", "-")
            raise ValueError(
                f"--{name} can be given only with random inputs, because {parsed.inputs} has a value of its own. Leave --{name} out"
            )
    subject = load(request_of(parsed, parsed.inputs))
    batches = tracked(subject.batches, f"queries, keys and values of {subject.name}")
    layers = gather([attention_inputs(subject.model, batch) for batch in batches])
    return layers, {"name": subject.name, "weights": subject.weights, "data": subject.data, "scale": None, **_shape(layers)}


def _random(parsed: argparse.Namespace) -> tuple[list[AttentionInputs], dict[str, Any]]:
    for option, default in (("text", None), ("images", None), ("weights", "auto")):
        if getattr(parsed, option) != default:
            raise ValueError(f"--{option} can be given only with a model. Name a model with --inputs, or leave --{option} out")
    check_seed(parsed.seed)
    length, heads, width, scale = (value if (value := getattr(parsed, name)) is not None else _RANDOM[name] for name in _RANDOM)
    layers = [random_inputs(parsed.sentences, heads, length, width, scale=scale, seed=parsed.seed, causal=parsed.causal)]
    return layers, {"name": "random", "weights": None, "data": "independent normal numbers", "scale": scale, **_shape(layers)}


def _shape(layers: Sequence[AttentionInputs]) -> dict[str, Any]:
    geometry = layers[0].geometry
    if geometry.queries != geometry.keys:
        raise UnsupportedError(
            f"there must be as many queries as keys (self-attention); got {geometry.queries} queries and {geometry.keys} keys"
        )
    shape = {"layers": len(layers), "sequences": layers[0].query.shape[0], "heads": geometry.heads}
    return {**shape, "length": geometry.keys, "head_dim": geometry.head_dim, "causal": geometry.causal}


def said(inputs: Mapping[str, Any]) -> str:
    """Return a description of the inputs in one line."""
    causal = ", causal" if inputs["causal"] else ""
    count = f"{inputs['sequences']} sequence{'s' * (inputs['sequences'] > 1)}"
    tokens = f"{inputs['length']} tokens"
    heads = f"{inputs['heads']} head{'s' * (inputs['heads'] > 1)} of width {inputs['head_dim']}{causal}"
    if inputs["name"] == "random":
        return f"random normal inputs, scores with standard deviation {inputs['scale']:g}: {count}, {tokens}, {heads}"
    heads = heads if tokens in inputs["data"] else f"{tokens}, {heads}"
    layers = f"{inputs['layers']} layer{'s' * (inputs['layers'] > 1)}"
    return f"{inputs['name']}, weights {inputs['weights']}, {layers}: {count} of {inputs['data']}; {heads}"
