"""Four levels at which a mechanism is measured: the module, its inputs, and whether training ends in an update.

``mechanism``  the mechanism alone on the tensors that it reads, (batch, heads, length, head_dim) each
``layer``      with its projections, (batch, length, dim) -> same
``block``      a pre-norm transformer block around the layer, with the optimiser's step
``model``      the whole network of a task on random tokens, with loss and optimiser's step
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_zoo.contract import Attention, AttentionCard, Geometry, Pairs, Patches, TaskSpec, UnknownNameError
from attn_zoo.cost.bench import Subject, build_layer, tokens
from attn_zoo.encoder import build_model
from attn_zoo.encoder.token import Block
from attn_zoo.layer import join_layers
from attn_zoo.registry import attention_options, build_attention, build_task, card, task_card

LEVELS = ("mechanism", "layer", "block", "model")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the network around a mechanism; a level reads those that it has."""

    dim: int
    heads: int
    depth: int = 1
    mlp_ratio: float = 2.0
    dropout: float = 0.0

    def geometry(self, length: int, causal: bool = False) -> Geometry:
        """Geometry of self-attention over ``length`` tokens."""
        return Geometry(self.heads, self.dim // self.heads, length, length, causal)


@dataclass(frozen=True, slots=True)
class Rig:
    """A subject at a level, as a bench runs it."""

    build: Callable[[int], nn.Module]
    """Picklable function from a length to the module."""
    inputs: Callable[[int, int, torch.dtype], tuple[Tensor, ...]]
    """Picklable function from batch, length and dtype to the module's arguments."""
    optimiser: bool


def rig_for(name: str, subject: Subject, sizes: Sizes, task: TaskSpec | None = None) -> Rig:
    """The subject at level ``name``, one of ``LEVELS``.

    Args:
        task: task of a ``model``, of sequences; its length is replaced.
    """
    if name == "mechanism":
        return Rig(partial(build_mechanism, subject, sizes), partial(heads, subject, sizes), False)
    if name == "layer":
        return Rig(partial(build_layer, subject, sizes.dim, sizes.heads), partial(tokens, sizes.dim), False)
    if name == "block":
        return Rig(partial(build_block, subject, sizes), partial(tokens, sizes.dim), True)
    assert task is not None and not isinstance(task.inputs, Patches)
    return Rig(partial(build_whole, subject, sizes, task), partial(labelled_ids, task), True)


class Alone(nn.Module):
    """A mechanism on the tensors that it reads, then its extra projections, all positional."""

    def __init__(self, mechanism: Attention) -> None:
        super().__init__()
        self.mechanism = mechanism
        self.streams = [stream.name for stream in mechanism.card.streams(mechanism.geometry, mechanism.options)]

    def forward(self, *tensors: Tensor) -> Tensor:
        """(batch, heads, length, head_dim) each, and so is the result."""
        given = dict(zip((*self.mechanism.card.reads, *self.streams), tensors, strict=True))
        streams = {name: given[name] for name in self.streams}
        out: Tensor = self.mechanism(given.get("query"), given.get("key"), given["value"], streams=streams)
        return out


def mechanism_inputs(
    entry: AttentionCard, geometry: Geometry, options: Any, batch: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """Normal noise, (batch, heads, length, head_dim), for each argument of ``Alone``."""
    lengths = [geometry.queries if name == "query" else geometry.keys for name in entry.reads]
    for stream in entry.streams(geometry, options):
        length = geometry.queries if stream.of == "queries" else geometry.keys
        lengths.append(length if stream.first is None else min(stream.first, length))
    return tuple(torch.randn(batch, geometry.heads, n, geometry.head_dim, dtype=dtype) for n in lengths)


def heads(subject: Subject, sizes: Sizes, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Queries, keys, values and extra projections, in this order, of those that a mechanism reads."""
    entry, geometry = card(subject.attention), sizes.geometry(length, subject.causal)
    return mechanism_inputs(entry, geometry, attention_options(entry, geometry, subject.options), batch, dtype)


class Whole(nn.Module):
    """A model that gives scores in evaluation and the mean cross-entropy of its labels in training."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Ids (batch, length) or (batch, 2, length), labels (batch,) or (batch, length)."""
        scores = self.model(ids)
        return F.cross_entropy(scores.flatten(0, -2), labels.flatten()) if self.training else scores


def labelled_ids(task: TaskSpec, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Random ids without padding and random labels; where positions are labelled, all are asked."""
    inputs = task.inputs
    assert not isinstance(inputs, Patches)
    shape = (batch, 2, length) if isinstance(inputs, Pairs) else (batch, length)
    labelled = (batch, length) if task.labels == "position" else (batch,)
    return torch.randint(1, inputs.vocabulary, shape), torch.randint(task.classes, labelled)


class Unpadded(nn.Module):
    """A block on tokens without padding."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length, dim) -> same."""
        out: Tensor = self.block(tokens, None)
        return out


def build_mechanism(subject: Subject, sizes: Sizes, length: int) -> Alone:
    """The mechanism alone, on the default device."""
    options = {"implementation": subject.implementation, "device": torch.get_default_device(), **subject.options}
    return Alone(build_attention(subject.attention, sizes.geometry(length, subject.causal), **options))


def build_block(subject: Subject, sizes: Sizes, length: int) -> Unpadded:
    """A block of the zoo's encoder."""
    layer = build_layer(subject, sizes.dim, sizes.heads, length)
    block = Unpadded(Block(sizes.dim, sizes.mlp_ratio, sizes.dropout, layer))
    join_layers(block)
    return block


def build_whole(subject: Subject, sizes: Sizes, task: TaskSpec, length: int) -> Whole:
    """The network of a task, for sequences of ``length``."""
    shape: dict[str, Any] = {"dim": sizes.dim, "heads": sizes.heads, "depth": sizes.depth}
    shape |= {"mlp_ratio": sizes.mlp_ratio, "dropout": sizes.dropout}
    entry: dict[str, Any] = {"attention": subject.attention, "options": subject.options, "implementation": subject.implementation}
    return Whole(build_model(replace(task, length=length), **entry, **shape))


def task_model(task: str, level: str | None) -> tuple[TaskSpec, dict[str, Any]]:
    """Specification of a task of sequences at one of its levels, and the sizes that this level proposes; None is the first.

    Raises:
        UnknownNameError: no such task or level.
        ValueError: the task reads images.
    """
    entry = task_card(task)
    name = level or next(iter(entry.levels), None)
    if name is not None and name not in entry.levels:
        raise UnknownNameError(f"level of task {entry.name}", name, entry.levels)
    chosen = entry.levels[name] if name is not None else None
    spec = build_task(entry.name, **({} if chosen is None else chosen.options)).spec
    if isinstance(spec.inputs, Patches):
        raise ValueError(f"level=model is measured over lengths, and images, which {entry.name} reads, have one; take another")
    return spec, {} if chosen is None else dict(chosen.model)
