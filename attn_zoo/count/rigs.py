"""The four scopes in which a mechanism is measured. Each has a module, inputs, and perhaps a step of an optimiser.

``mechanism``  the mechanism alone on the tensors that it reads, (batch, heads, length, head_dim) each
``layer``      with its projections, (batch, length, dim) -> same
``block``      a pre-norm transformer block around the layer, with the optimiser's step
``model``      the whole network of a task on random tokens, with loss and optimiser's step
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.contract import Attention, AttentionCard, Frames, Geometry, Pairs, Patches, Problem, TaskSpec
from attn_zoo.encoder import LOSSES, build_model
from attn_zoo.encoder.token import Block
from attn_zoo.layer import MultiHeadAttention, join_layers
from attn_zoo.registry import attention_options, build_attention, build_task, card, task_card

LEVELS = ("mechanism", "layer", "block", "model")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the network around a mechanism; a level reads only the sizes that it has."""

    dim: int
    heads: int
    depth: int = 1
    mlp_ratio: float = 2.0
    dropout: float = 0.0

    def geometry(self, length: int, causal: bool = False) -> Geometry:
        """Return the geometry of self-attention over ``length`` tokens."""
        return Geometry(self.heads, self.dim // self.heads, length, length, causal)


@dataclass(frozen=True, slots=True)
class Subject:
    """A mechanism with its options and implementation, to be measured."""

    attention: str
    options: Mapping[str, Any]
    implementation: str = "auto"
    backend: str | None = None
    """Back end that PyTorch's fused attention must use (``BACKENDS`` of ``attn_zoo.bench``); None leaves the choice to PyTorch."""
    causal: bool = False


def build_layer(subject: Subject, dim: int, heads: int, length: int) -> MultiHeadAttention:
    """Build an attention layer of the zoo with its projections, (batch, length, dim) -> same."""
    options = {"implementation": subject.implementation, "causal": subject.causal, **subject.options}
    return MultiHeadAttention(dim, heads, subject.attention, length=length, **options)


def random_tokens(dim: int, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Draw normal tokens, (batch, length, dim), on the default device."""
    return (torch.randn(batch, length, dim, dtype=dtype),)


@dataclass(frozen=True, slots=True)
class Rig:
    """Module, inputs and optimiser of a subject at a level, as ``Bench`` takes them."""

    build: Callable[[int], nn.Module]
    """Picklable function from a length to the module."""
    inputs: Callable[[int, int, torch.dtype], tuple[Tensor, ...]]
    """Picklable function from batch, length and dtype to the module's arguments."""
    optimiser: bool


def rig_for(name: str, subject: Subject, sizes: Sizes, task: TaskSpec | None = None) -> Rig:
    """Return the rig of a subject at level ``name``, one of ``LEVELS``.

    Args:
        task: task with sequences as inputs, for level ``model``; its length is replaced.
    """
    if name == "mechanism":
        return Rig(partial(build_mechanism, subject, sizes), partial(random_heads, subject, sizes), False)
    if name == "layer":
        return Rig(partial(build_layer, subject, sizes.dim, sizes.heads), partial(random_tokens, sizes.dim), False)
    if name == "block":
        return Rig(partial(build_block, subject, sizes), partial(random_tokens, sizes.dim), True)
    assert task is not None and not isinstance(task.inputs, Patches)
    return Rig(partial(build_whole, subject, sizes, task), partial(labelled_inputs, task), True)


class BareMechanism(nn.Module):
    """Mechanism without a layer; positional arguments are the tensors that it reads, then its extra projections."""

    def __init__(self, mechanism: Attention) -> None:
        super().__init__()
        self.mechanism = mechanism
        self.streams = [stream.name for stream in mechanism.card.streams(mechanism.geometry, mechanism.options)]

    def forward(self, *tensors: Tensor) -> Tensor:
        """Apply the mechanism; each tensor and the result are (batch, heads, length, head_dim)."""
        given = dict(zip((*self.mechanism.card.reads, *self.streams), tensors, strict=True))
        streams = {name: given[name] for name in self.streams}
        out: Tensor = self.mechanism(given.get("query"), given.get("key"), given["value"], streams=streams)
        return out


def mechanism_inputs(
    entry: AttentionCard, geometry: Geometry, options: Any, batch: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """Return normal noise, (batch, heads, length, head_dim), for each argument of ``BareMechanism``."""
    lengths = [geometry.queries if name == "query" else geometry.keys for name in entry.reads]
    for stream in entry.streams(geometry, options):
        length = geometry.queries if stream.of == "queries" else geometry.keys
        lengths.append(length if stream.first is None else min(stream.first, length))
    return tuple(torch.randn(batch, geometry.heads, n, geometry.head_dim, dtype=dtype) for n in lengths)


def random_heads(subject: Subject, sizes: Sizes, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return random queries, keys, values and extra projections, in this order, without those that the mechanism does not read."""
    entry, geometry = card(subject.attention), sizes.geometry(length, subject.causal)
    return mechanism_inputs(entry, geometry, attention_options(entry, geometry, subject.options), batch, dtype)


class ModelWithLoss(nn.Module):
    """A model that gives scores in evaluation and the mean loss of its labels in training."""

    def __init__(self, model: nn.Module, problem: Problem) -> None:
        super().__init__()
        self.model, self.problem = model, problem

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Take ids (batch, length) or (batch, 2, length), or frames (batch, length, channels); labels as in ``Batch``."""
        scores = self.model(inputs)
        if not self.training:
            return scores
        return LOSSES[self.problem](scores.flatten(0, -2), labels.flatten(0, -2 if labels.is_floating_point() else -1))


def labelled_inputs(task: TaskSpec, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return random ids or frames without padding, and random labels; if positions are labelled, every one is."""
    inputs = task.inputs
    assert not isinstance(inputs, Patches)
    if isinstance(inputs, Frames):
        given = torch.randn(batch, length, inputs.channels, dtype=dtype)
    else:
        given = torch.randint(1, inputs.vocabulary, (batch, 2, length) if isinstance(inputs, Pairs) else (batch, length))
    labelled = (batch, length) if task.labels == "position" else (batch,)
    if task.problem == "classification":
        return given, torch.randint(task.classes, labelled)
    return given, torch.randint(2, (*labelled, task.classes)).float()


def build_mechanism(subject: Subject, sizes: Sizes, length: int) -> BareMechanism:
    """Build the mechanism alone, on the default device."""
    options = {"implementation": subject.implementation, "device": torch.get_default_device(), **subject.options}
    return BareMechanism(build_attention(subject.attention, sizes.geometry(length, subject.causal), **options))


def build_block(subject: Subject, sizes: Sizes, length: int) -> Block:
    """Build a block of the zoo's encoder."""
    block = Block(sizes.dim, sizes.mlp_ratio, sizes.dropout, build_layer(subject, sizes.dim, sizes.heads, length))
    join_layers(block)
    return block


def build_whole(subject: Subject, sizes: Sizes, task: TaskSpec, length: int) -> ModelWithLoss:
    """Build the network of a task, for sequences of ``length``."""
    shape: dict[str, Any] = {"dim": sizes.dim, "heads": sizes.heads, "depth": sizes.depth}
    shape |= {"mlp_ratio": sizes.mlp_ratio, "dropout": sizes.dropout}
    entry: dict[str, Any] = {"attention": subject.attention, "options": subject.options, "implementation": subject.implementation}
    return ModelWithLoss(build_model(replace(task, length=length), **entry, **shape), task.problem)


def task_model(task: str, level: str | None) -> tuple[TaskSpec, dict[str, Any]]:
    """Return the specification of a task of sequences at one of its levels, and the sizes that the level proposes; None means the
    first level.

    Raises:
        UnknownNameError: no such task or level.
        ValueError: the task reads images.
    """
    entry = task_card(task)
    chosen = entry.level(level)
    spec = build_task(entry.name, **chosen.options).spec
    if isinstance(spec.inputs, Patches):
        raise ValueError(
            f"level=model needs a task whose inputs can have several lengths, but the images of {entry.name} have one length; "
            "choose another task"
        )
    return spec, dict(chosen.model)
