"""Scopes in which costs are counted and measured: a mechanism alone, or a layer around it.

- ``mechanism``: the mechanism alone. Each of its inputs is a tensor (batch, heads, length, head_dim).
- ``layer``: the mechanism with its projections, from (batch, length, dim) to the same shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.contract import Attention, AttentionCard, Geometry
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.registry import attention_options, build_attention, card

SCOPES = ("mechanism", "layer")


@dataclass(frozen=True, slots=True)
class Subject:
    """Mechanism that is counted or measured, with its options and its implementation."""

    attention: str
    options: Mapping[str, Any]
    implementation: str = "auto"
    backend: str | None = None
    """Back end that PyTorch's fused attention must use, a key of ``attn_zoo.bench.bench.BACKENDS``. None leaves the choice to
    PyTorch."""
    causal: bool = False


def geometry_of(subject: Subject, dim: int, heads: int, length: int) -> Geometry:
    """Return the geometry (sizes and causality) of self-attention over ``length`` tokens."""
    return Geometry(heads, dim // heads, length, length, subject.causal)


def build_module(scope: str, subject: Subject, dim: int, heads: int, length: int) -> nn.Module:
    """Return the mechanism of ``subject`` alone, or an attention layer around it, on the default device. ``scope`` is one of
    ``SCOPES``.

    Raises:
        UnknownNameError: no such mechanism, option or implementation.
        UnsupportedError: the mechanism, its options or its implementation do not support these sizes.
        ValueError: an option breaks its rule.
    """
    options = {"implementation": subject.implementation, **subject.options}
    if scope == "layer":
        return MultiHeadAttention(dim, heads, subject.attention, length=length, causal=subject.causal, **options)
    device = torch.get_default_device()
    geometry = geometry_of(subject, dim, heads, length)
    return BareMechanism(build_attention(subject.attention, geometry, device=device, **options))


def random_inputs(
    scope: str, subject: Subject, dim: int, heads: int, batch: int, length: int, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """Return the arguments of ``build_module``'s module, drawn from a normal distribution on the default device: tokens (batch,
    length, dim) for a layer, and the inputs that a mechanism uses for a mechanism."""
    if scope == "layer":
        return (torch.randn(batch, length, dim, dtype=dtype),)
    entry, geometry = card(subject.attention), geometry_of(subject, dim, heads, length)
    return mechanism_inputs(entry, geometry, attention_options(entry, geometry, subject.options), batch, dtype)


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
