"""The three scopes in which a mechanism is measured. Each scope has a module and its inputs.

- ``mechanism``: the mechanism alone. Each of its inputs is a tensor (batch, heads, length, head_dim).
- ``layer``: the mechanism with its projections, from (batch, length, dim) to the same shape.
- ``block``: a pre-norm transformer block around the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.contract import Attention, AttentionCard, Geometry
from attn_zoo.encoder.token import Block
from attn_zoo.layer import MultiHeadAttention, join_layers
from attn_zoo.registry import attention_options, build_attention, card

LEVELS = ("mechanism", "layer", "block")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the network around a mechanism. A mechanism, layer or block uses only those that apply to it."""

    dim: int
    heads: int
    mlp_ratio: float = 2.0

    def geometry(self, length: int, causal: bool = False) -> Geometry:
        """Return the geometry (sizes and causality) of self-attention over ``length`` tokens."""
        return Geometry(self.heads, self.dim // self.heads, length, length, causal)


@dataclass(frozen=True, slots=True)
class Subject:
    """Mechanism to be measured, with its options and its implementation."""

    attention: str
    options: Mapping[str, Any]
    implementation: str = "auto"
    backend: str | None = None
    """Back end that PyTorch's fused attention must use, a key of ``attn_zoo.bench.bench.BACKENDS``. None leaves the choice to
    PyTorch."""
    causal: bool = False


def build_layer(subject: Subject, dim: int, heads: int, length: int) -> MultiHeadAttention:
    """Return an attention layer with its projections, which maps (batch, length, dim) to the same shape."""
    options = {"implementation": subject.implementation, "causal": subject.causal, **subject.options}
    return MultiHeadAttention(dim, heads, subject.attention, length=length, **options)


def random_tokens(dim: int, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return random tokens (batch, length, dim) from a normal distribution, as a tuple of one tensor on the default device."""
    return (torch.randn(batch, length, dim, dtype=dtype),)


@dataclass(frozen=True, slots=True)
class Rig:
    """Two functions that make a module and its inputs for ``Bench``."""

    build: Callable[[int], nn.Module]
    """Picklable function from a length to the module."""
    inputs: Callable[[int, int, torch.dtype], tuple[Tensor, ...]]
    """Picklable function from batch, length and dtype to the arguments of the module."""


def rig_for(name: str, subject: Subject, sizes: Sizes) -> Rig:
    """Return the functions that make a module and its inputs. ``name`` is the kind of module, one of ``LEVELS``: the
    ``mechanism`` of ``subject`` alone, or a ``layer`` or ``block`` with this mechanism."""
    if name == "mechanism":
        return Rig(partial(build_mechanism, subject, sizes), partial(random_heads, subject, sizes))
    if name == "layer":
        return Rig(partial(build_layer, subject, sizes.dim, sizes.heads), partial(random_tokens, sizes.dim))
    return Rig(partial(build_block, subject, sizes), partial(random_tokens, sizes.dim))


class BareMechanism(nn.Module):
    """Module that contains only a mechanism. Its positional arguments are the queries, keys and values, as far as the mechanism
    uses them, followed by the additional inputs (streams)."""

    def __init__(self, mechanism: Attention) -> None:
        super().__init__()
        self.mechanism = mechanism
        self.streams = [stream.name for stream in mechanism.card.streams(mechanism.geometry, mechanism.options)]

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return the output of the mechanism. Each input and the output have the shape (batch, heads, length, head_dim)."""
        given = dict(zip((*self.mechanism.card.reads, *self.streams), tensors, strict=True))
        streams = {name: given[name] for name in self.streams}
        out: Tensor = self.mechanism(given.get("query"), given.get("key"), given["value"], streams=streams)
        return out


def mechanism_inputs(
    entry: AttentionCard, geometry: Geometry, options: Any, batch: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """Return a random tensor from a normal distribution for each argument of ``BareMechanism``. Its shape is (batch, heads, length,
    head_dim), or (batch, heads, length, 1) for a stream with one number per head."""
    sizes = [(geometry.queries if name == "query" else geometry.keys, geometry.head_dim) for name in entry.reads]
    for stream in entry.streams(geometry, options):
        length = geometry.queries if stream.of == "queries" else geometry.keys
        width = 1 if stream.per_head else geometry.head_dim
        sizes.append((length if stream.first is None else min(stream.first, length), width))
    return tuple(torch.randn(batch, geometry.heads, n, width, dtype=dtype) for n, width in sizes)


def random_heads(subject: Subject, sizes: Sizes, batch: int, length: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Return random queries, keys, values and additional inputs (streams), in this order. Inputs that the mechanism does not use
    are left out."""
    entry, geometry = card(subject.attention), sizes.geometry(length, subject.causal)
    return mechanism_inputs(entry, geometry, attention_options(entry, geometry, subject.options), batch, dtype)


def build_mechanism(subject: Subject, sizes: Sizes, length: int) -> BareMechanism:
    """Return the mechanism alone, built on the default device."""
    options = {"implementation": subject.implementation, "device": torch.get_default_device(), **subject.options}
    return BareMechanism(build_attention(subject.attention, sizes.geometry(length, subject.causal), **options))


def build_block(subject: Subject, sizes: Sizes, length: int) -> Block:
    """Return a block of attn-zoo's encoder with the mechanism of ``subject``."""
    block = Block(sizes.dim, sizes.mlp_ratio, 0.0, build_layer(subject, sizes.dim, sizes.heads, length))
    join_layers(block)
    return block
