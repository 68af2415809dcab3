"""Teacher of a transplant: the original encoder, its embeddings of passages, and inputs and outputs of its attention modules."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.analysis.sources import load_subject
from attn_zoo.integrations.transformers.sites import sites
from attn_zoo.transplant.texts import Passages

BATCH = 16
"""Number of passages per batch in computations without gradients."""

Answers = tuple[Float[Tensor, "passages length dim"], Float[Tensor, "passages length width"]]
"""Inputs and outputs of one attention module of the teacher for all passages, in float16 to save memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Teacher:
    """Original encoder with its tokenizer, in evaluation mode. Students are copies of it whose attention is replaced."""

    model: Any
    tokenizer: Any
    name: str
    weights: str
    """Description of the weights, such as ``pretrained``."""


def load_teacher(model: str, length: int) -> Teacher:
    """Return an encoder of the library transformers with its tokenizer.

    Args:
        model: ``minilm``, or a folder with a model of transformers.
        length: maximum length of a passage in tokens. The model must have at least as many positions.

    Raises:
        ValueError: the model does not read text, is causal, has cross-attention, has fewer than ``length`` positions, or has
            layers that cannot be distilled one at a time.
        OSError: transformers cannot load the model.
        UnsupportedError: the tokenizer cannot cut text into passages, or an optional package is missing.
    """
    if model.startswith("timm/"):
        raise ValueError(f"the encoder must be minilm or a folder with a text encoder of transformers; got {model!r}")
    subject = load_subject(model, 1, length)
    from transformers import AutoTokenizer

    loaded: Any = subject.model
    places = sites(loaded)
    if any(site.causal or site.crosses for site in places):
        raise ValueError(
            f"{subject.name} must be an encoder, but it has causal attention or cross-attention. Give minilm, a BERT or a "
            "similar model"
        )
    if any("position_embeddings" in inspect.signature(site.module.forward).parameters for site in places):
        raise ValueError(
            f"{subject.name} must not have rotary positions outside of its attention modules, because only these modules are "
            "distilled. Give minilm or a BERT"
        )
    if len(places) < getattr(loaded.config, "num_hidden_layers", 0):
        raise ValueError(
            f"each layer of {subject.name} must have an attention module of its own, because layers are distilled one at a "
            "time. Give minilm or a BERT"
        )
    tokenizer = AutoTokenizer.from_pretrained(loaded.name_or_path, local_files_only=True, trust_remote_code=False)
    loaded.set_attn_implementation("sdpa")
    return Teacher(loaded.eval().requires_grad_(False), tokenizer, subject.name, subject.weights)


def mean_hidden(model: Any, passages: Passages) -> Float[Tensor, "passages dim"]:
    """Return the mean of the last hidden states over the real tokens of each passage."""
    hidden = model(**passages.call()).last_hidden_state
    weight = passages.valid[..., None].to(hidden.dtype)
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)


def embedding(model: Any, passages: Passages) -> Float[Tensor, "passages dim"]:
    """Return the sentence embedding of each passage, as in all-MiniLM: ``mean_hidden``, scaled to Euclidean norm 1."""
    return F.normalize(mean_hidden(model, passages), dim=-1)


@torch.no_grad()
def embed(model: Any, passages: Passages, *, trim: bool) -> Float[Tensor, "passages dim"]:
    """Return the embeddings of many passages, in the order of the passages.

    Args:
        trim: True to batch passages by length, and to drop the padding that all passages of a batch share. The model must then
            run at any length.
    """
    if not trim:
        return torch.cat([embedding(model, batch) for batch in passages.batches(BATCH)])
    order = passages.valid.sum(dim=1).argsort(stable=True)
    parts = [embedding(model, batch.trimmed()) for batch in passages[order].batches(BATCH)]
    return torch.cat(parts)[order.argsort()]


@torch.no_grad()
def answers_of(model: Any, passages: Passages) -> list[Answers]:
    """Return the inputs and outputs of every attention module for these passages, in the order of the modules in the model."""
    captured: dict[nn.Module, tuple[list[Tensor], list[Tensor]]] = {site.module: ([], []) for site in sites(model)}

    def capture(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        inputs, outputs = captured[module]
        inputs.append((kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]).half())
        outputs.append(_first_of(output).half())

    handles = [module.register_forward_hook(capture, with_kwargs=True) for module in captured]
    try:
        for batch in passages.batches(BATCH):
            model(**batch.call())
    finally:
        for handle in handles:
            handle.remove()
    return [(torch.cat(inputs), torch.cat(outputs)) for inputs, outputs in captured.values()]


def answer(module: Any, hidden: Float[Tensor, "batch length dim"], valid: Bool[Tensor, "batch length"]) -> Tensor:
    """Return the output of an attention module of a student for given hidden states. ``valid`` is True for real tokens."""
    return _first_of(module(hidden, attention_mask=None if bool(valid.all()) else valid))


def _first_of(output: Any) -> Tensor:
    """Return the output of an attention module, without the attention weights that most modules return with it."""
    first: Tensor = output[0] if isinstance(output, tuple) else output
    return first
