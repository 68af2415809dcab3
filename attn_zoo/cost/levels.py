"""The four levels at which a mechanism is measured: what is built, what it is given, and whether training ends in an update.

``mechanism``  the mechanism alone on tensors (batch, heads, length, head_dim), as many as it reads
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
import torch.nn.functional as F
from torch import Tensor, nn

from attn_zoo.contract import Geometry, Pairs, Patches, TaskSpec
from attn_zoo.cost.bench import Feed, Subject, Tokens, build_layer
from attn_zoo.encoder import build_model
from attn_zoo.encoder.token import Block
from attn_zoo.layer import MultiHeadAttention, join_layers
from attn_zoo.registry import attention_options, build_attention, card

LEVELS = ("mechanism", "layer", "block", "model")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the network around the mechanism; a level reads those it has a use for."""

    dim: int
    heads: int
    depth: int
    mlp_ratio: float
    dropout: float = 0.0


@dataclass(frozen=True, slots=True)
class Rig:
    """What a bench drives: one subject at one level."""

    build: Callable[[int], nn.Module]
    """The module for a length; picklable."""
    feed: Feed
    optimiser: bool


def rig_for(name: str, subject: Subject, sizes: Sizes, task: TaskSpec | None = None) -> Rig:
    """The subject at level ``name``, one of ``LEVELS``.

    Args:
        task: what ``model`` is built for; its length is replaced by that asked for. Of sequences, not of images.
    """
    if name == "mechanism":
        return Rig(partial(build_mechanism, subject, sizes), Heads(subject, sizes.heads, sizes.dim // sizes.heads), False)
    if name == "layer":
        return Rig(partial(build_layer, subject, sizes.dim, sizes.heads), Tokens(sizes.dim), False)
    if name == "block":
        return Rig(partial(build_block, subject, sizes), Tokens(sizes.dim), True)
    assert task is not None and not isinstance(task.inputs, Patches)
    return Rig(partial(build_whole, subject, sizes, task), Labelled(task), True)


class Alone(nn.Module):
    """A mechanism under positional arguments: what it reads, then its streams."""

    def __init__(self, mechanism: nn.Module, reads: tuple[str, ...], streams: tuple[str, ...]) -> None:
        super().__init__()
        self.mechanism, self.reads, self.streams = mechanism, reads, streams

    def forward(self, *tensors: Tensor) -> Tensor:
        """(batch, heads, length, head_dim) each, and so is the result."""
        given: Mapping[str, Tensor] = dict(zip((*self.reads, *self.streams), tensors, strict=True))
        streams = {name: given[name] for name in self.streams}
        return self.mechanism(given.get("query"), given.get("key"), given["value"], streams=streams)


@dataclass(frozen=True, slots=True)
class Heads:
    """What a mechanism reads, normal noise of shape (batch, heads, length, head_dim), contiguous."""

    subject: Subject
    heads: int
    head_dim: int

    def inputs(self, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Queries, keys, values and streams, in this order, of those that the mechanism reads."""
        entry = card(self.subject.attention)
        geometry = self._geometry(length)
        streams = entry.streams(geometry, attention_options(entry, geometry, self.subject.options))
        lengths = [length] * len(entry.reads) + [min(stream.first or length, length) for stream in streams]
        return tuple(torch.randn(batch, self.heads, n, self.head_dim, dtype=dtype) for n in lengths)

    def gradient(self, batch: int, length: int, dtype: torch.dtype) -> Tensor:
        """As the values."""
        return torch.randn(batch, self.heads, length, self.head_dim, dtype=dtype)

    def _geometry(self, length: int) -> Geometry:
        return Geometry(self.heads, self.head_dim, length, length)


class Whole(nn.Module):
    """A model that gives scores in evaluation and the mean cross-entropy of its labels in training."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Ids (batch, length) or (batch, 2, length), labels (batch,) or (batch, length)."""
        scores = self.model(ids)
        return F.cross_entropy(scores.flatten(0, -2), labels.flatten()) if self.training else scores


@dataclass(frozen=True, slots=True)
class Labelled:
    """Random ids without padding and random labels; where positions are labelled, all are asked."""

    task: TaskSpec

    def inputs(self, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Ids and labels."""
        inputs = self.task.inputs
        assert not isinstance(inputs, Patches)
        shape = (batch, 2, length) if isinstance(inputs, Pairs) else (batch, length)
        labelled = (batch, length) if self.task.labels == "position" else (batch,)
        return torch.randint(1, inputs.vocabulary, shape), torch.randint(self.task.classes, labelled)

    def gradient(self, batch: int, length: int, dtype: torch.dtype) -> Tensor:
        """Of the loss: one."""
        return torch.ones((), dtype=dtype)


class Unpadded(nn.Module):
    """A block whose tokens are all real."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length, dim) -> same."""
        return self.block(tokens, None)


def build_mechanism(subject: Subject, sizes: Sizes, length: int) -> Alone:
    """The mechanism alone."""
    geometry = Geometry(sizes.heads, sizes.dim // sizes.heads, length, length)
    device, options = torch.get_default_device(), dict(subject.options)
    built = build_attention(subject.attention, geometry, implementation=subject.implementation, device=device, **options)
    return Alone(built, built.card.reads, tuple(stream.name for stream in built.card.streams(geometry, built.options)))


def build_block(subject: Subject, sizes: Sizes, length: int) -> Unpadded:
    """A block of the zoo's encoder."""
    layer = build_layer(subject, sizes.dim, sizes.heads, length)
    assert isinstance(layer, MultiHeadAttention)
    block = Unpadded(Block(sizes.dim, sizes.mlp_ratio, sizes.dropout, layer))
    join_layers(block)
    return block


def build_whole(subject: Subject, sizes: Sizes, task: TaskSpec, length: int) -> Whole:
    """The network of a task, for sequences of ``length``."""
    shape: dict[str, Any] = {"dim": sizes.dim, "heads": sizes.heads, "depth": sizes.depth}
    shape |= {"mlp_ratio": sizes.mlp_ratio, "dropout": sizes.dropout}
    entry: dict[str, Any] = {"attention": subject.attention, "options": subject.options, "implementation": subject.implementation}
    return Whole(build_model(replace(task, length=length), **entry, **shape))
