"""Projections from tokens to the inputs of a mechanism, and from its outputs back to tokens, with or without a gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.contract import Attention, CompressingAttention, Stream, UnsupportedError

_INPUTS = ("query", "key", "value")
LATENT_FLOOR = 1e-6
"""Number added to the mean square of a latent before its root is taken, as in DeepSeek's code."""

OUTPUT_GATES = ("none", "elementwise", "headwise")
"""Forms of the output gate: none, one factor per channel, or one factor per head."""


class Projections(nn.Module):
    """Mechanism with the projections of its inputs, of its extra inputs (streams) and of its outputs.

    Args:
        mechanism: mechanism that reads the projected tokens.
        dim: width of the tokens of the queries, and of the outputs.
        context_dim: width of the tokens from which keys and values are projected. If ``latent_dim`` of the geometry is set, these
            tokens are first projected to latent vectors.
        fused: if True, one linear map computes queries, keys and values together. The tokens of all three must have the same width.
        bias: if True, projections have a bias.
        output_gate: one of ``OUTPUT_GATES``.
    """

    def __init__(
        self, mechanism: Attention, dim: int, context_dim: int, *, fused: bool, bias: bool, output_gate: str = "none"
    ) -> None:
        super().__init__()
        self.dim, self.context_dim, self.fused = dim, context_dim, fused
        self.mechanism = mechanism
        latent_dim = mechanism.geometry.latent_dim
        self.source_dim = latent_dim or context_dim
        self.reads = tuple(name for name in _INPUTS if name in mechanism.card.reads)
        kept_width = mechanism.geometry.key_value_dim
        self.widths = {"query": dim, "key": kept_width, "value": kept_width}
        # All three are drawn whatever the mechanism reads, so that one seed gives the same projections to every mechanism.
        sources = {"query": dim, "key": self.source_dim, "value": self.source_dim}
        drawn = {name: _xavier_linear(width, self.widths[name], bias) for name, width in sources.items()}
        kept = {name: drawn[name] for name in self.reads}
        if fused:
            self.projection = nn.Linear(dim, sum(self.widths[name] for name in kept), bias)
            with torch.no_grad():
                self.projection.weight.copy_(torch.cat([linear.weight for linear in kept.values()]))
                if bias:
                    self.projection.bias.zero_()
        else:
            self.projections = nn.ModuleDict(kept)
        self.out = _xavier_linear(dim, dim, bias)
        gates = {"none": 0, "elementwise": dim, "headwise": mechanism.geometry.heads}[output_gate]
        self.gate = _xavier_linear(dim, gates, bias) if gates else None
        self.latent: nn.Sequential | None = None
        if latent_dim:
            norm = nn.RMSNorm(latent_dim, eps=LATENT_FLOOR)
            self.latent = nn.Sequential(_xavier_linear(context_dim, latent_dim, bias=False), norm)
        self.streams: tuple[Stream, ...] = mechanism.card.streams(mechanism.geometry, mechanism.options)
        self.stream_projections = nn.ModuleDict(
            {
                stream.name: nn.Linear(dim if stream.of == "queries" else self.source_dim, self.widths[stream.starts_as], bias)
                for stream in self.streams
            }
        )

    def _parameters_of(self, name: str, other_advice: str = "") -> tuple[Tensor, Tensor | None]:
        """Return the weight and bias of one projection, which may be a part of the fused one.

        Args:
            other_advice: end of the error message, if there is another remedy.

        Raises:
            UnsupportedError: the projection computes more than its weight and bias say; see ``is_plain``.
        """
        linear = self._projection_of(name)
        if not is_plain(linear):
            path = "projection" if self.fused else f"projections.{name}"
            raise UnsupportedError(
                f"{self.mechanism.card.name}: {path} must be an nn.Linear without hooks, because its weights are read without a "
                f"call; got {described(linear)}. Merge adapters, make pruning permanent and remove hooks{other_advice}"
            )
        assert isinstance(linear, nn.Linear)
        if not self.fused:
            return linear.weight, linear.bias
        at = sum(self.widths[earlier] for earlier in self.reads[: self.reads.index(name)])
        rows, bias = slice(at, at + self.widths[name]), linear.bias
        return linear.weight[rows], None if bias is None else bias[rows]

    def _projection_of(self, name: str) -> nn.Module:
        """Return the module of the projection to queries, keys or values, which may be the fused one."""
        return self.projection if self.fused else self.projections[name]

    def _check_dtype(self, name: str, tensor: Tensor) -> None:
        """Raise an error if a tensor has another dtype than the weights, unless autocast or a replaced projection converts it.

        Raises:
            ValueError: the message names both dtypes.
        """
        if not is_plain(self.out) or tensor.dtype == self.out.weight.dtype or tensor.is_meta:
            return
        if not torch.is_autocast_enabled(tensor.device.type):
            raise ValueError(
                f"{self.mechanism.card.name}: {name} must have the dtype of the layer's weights, {self.out.weight.dtype}; got "
                f"{tensor.dtype}. Convert them with {name}.to({self.out.weight.dtype}), or the layer with .to({tensor.dtype})"
            )

    def _split(self, flat: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch _ length head_dim"]:
        return flat.unflatten(-1, (-1, self.mechanism.geometry.head_dim)).transpose(1, 2)

    def _shared(self, x: Float[Tensor, "batch _ length head_dim"]) -> Float[Tensor, "batch heads length head_dim"]:
        """Repeat each head of keys or values for all heads of queries that share it."""
        heads = self.mechanism.geometry.heads
        return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)

    def _project(self, name: str, tokens: Tensor) -> Tensor:
        """Project tokens to queries, keys or values. The module of the projection is called, because it may be an adapter or have
        hooks. Only the rows of one input are read from a fused projection, unless it must be called.
        """
        if not self.fused:
            return self._split(self.projections[name](tokens))
        if is_plain(self.projection):
            return self._split(F.linear(tokens, *self._parameters_of(name)))
        return self._split(self._fused_parts(tokens)[self.reads.index(name)])

    def _fused_parts(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of the fused projection, one tensor for each input that the mechanism reads."""
        return self.projection(tokens).split([self.widths[name] for name in self.reads], dim=-1)

    def _latent_of(self, source: Float[Tensor, "batch keys context_dim"]) -> Float[Tensor, "batch keys source_dim"]:
        """Return what keys and values are projected from: the tokens or, if there is a latent, the latents. Tokens of zeros have
        latents of zeros.
        """
        return source if self.latent is None else self.latent(source)

    def _project_all(self, tokens: Tensor, source: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Project ``tokens`` to the query, and ``source`` to key and value. An input that the mechanism does not read is None."""
        if self.fused:
            split = dict(zip(self.reads, map(self._split, self._fused_parts(tokens)), strict=True))
        else:
            split = {name: self._project(name, tokens if name == "query" else source) for name in self.reads}
        return split.get("query"), split.get("key"), split["value"]

    def _project_streams(self, of: Literal["queries", "keys"], tokens: Tensor, start: int = 0) -> dict[str, Tensor]:
        """Project tokens to the streams of queries or keys. ``start`` tokens were read in earlier steps."""
        linears, head_dim = self.stream_projections, self.mechanism.geometry.head_dim
        return {s.name: project_stream(s, linears[s.name], tokens, head_dim, start) for s in self.streams if s.of == of}

    def _kept(self, source: Tensor) -> tuple[Tensor | None, Tensor, dict[str, Tensor]]:
        """Return keys, values and streams of keys, each with as many heads as it is projected to."""
        made = {name: self._project(name, source) for name in self.reads if name != "query"}
        return made.get("key"), made["value"], self._project_streams("keys", source)

    @property
    def makes_queries(self) -> bool:
        """True if a projection reads the tokens of the queries: the projection to queries, to an extra input with one position per
        query, or to the output gate.
        """
        return "query" in self.reads or self.gate is not None or any(stream.of == "queries" for stream in self.streams)

    def _for_all_heads(
        self, key: Tensor | None, value: Tensor, streams: Mapping[str, Tensor]
    ) -> tuple[Tensor | None, Tensor, dict[str, Tensor]]:
        shared = {name: self._shared(stream) for name, stream in streams.items()}
        return None if key is None else self._shared(key), self._shared(value), shared

    def _compressed_key_and_value(self, source: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Compute E (X W + 1 bᵀ) as (E X) W + (E 1) bᵀ, where (E 1) are the summed weights of real tokens."""
        mechanism = self.mechanism
        assert isinstance(mechanism, CompressingAttention)
        advice = ", or build the layer with order='project_first'"
        (weight_k, bias_k), (weight_v, bias_v) = (self._parameters_of(name, advice) for name in ("key", "value"))
        if bias_k is None and bias_v is None:
            short_k, short_v = mechanism.compress(source, key_valid)
            return self._split(F.linear(short_k, weight_k)), self._split(F.linear(short_v, weight_v))
        (short_k, short_v), (mass_k, mass_v) = mechanism.compress_and_weigh(source, key_valid)
        key, value = F.linear(short_k, weight_k), F.linear(short_v, weight_v)
        return self._split(_with_mass(key, mass_k, bias_k)), self._split(_with_mass(value, mass_v, bias_v))

    def _merge(self, mixed: Float[Tensor, "batch heads queries head_dim"]) -> Float[Tensor, "batch queries dim"]:
        """Join the outputs of the heads along the width."""
        return mixed.transpose(1, 2).flatten(2)

    def _gated(
        self, merged: Float[Tensor, "batch queries dim"], tokens: Float[Tensor, "batch queries dim"]
    ) -> Float[Tensor, "batch queries dim"]:
        """Multiply the outputs of the mechanism by σ(x W_g + b), where x are the tokens of the queries."""
        if self.gate is None:
            return merged
        heads, gates = self.mechanism.geometry.heads, self.gate(tokens).sigmoid()
        return (merged.unflatten(-1, (heads, -1)) * gates.unflatten(-1, (heads, -1))).flatten(2)


def project_stream(
    stream: Stream, linear: nn.Module, tokens: Float[Tensor, "batch length width"], head_dim: int, start: int = 0
) -> Float[Tensor, "batch _ _ _"]:
    """Project tokens to a stream, with ``linear`` from tokens to all channels of all heads. ``start`` tokens were read in earlier
    steps."""
    tokens = tokens if stream.first is None else tokens[:, : max(0, stream.first - start)]
    if not stream.per_head or not is_plain(linear):
        return stream.of_channels(linear(tokens).unflatten(-1, (-1, head_dim)).transpose(1, 2))
    assert isinstance(linear, nn.Linear)
    # One number per head: the weights are summed over the channels first, so that the product has one column per head.
    weight = stream.of_channels(linear.weight.unflatten(0, (-1, head_dim)).mT)[..., 0]
    bias = None if linear.bias is None else stream.of_channels(linear.bias.unflatten(0, (-1, head_dim)))[..., 0]
    return F.linear(tokens, weight, bias).mT[..., None]


def _with_mass(
    flat: Float[Tensor, "batch r width"], mass: Float[Tensor, "*batch r 1"], bias: Float[Tensor, " width"] | None
) -> Float[Tensor, "batch r width"]:
    """Add the bias, if there is one, times the summed weights of real tokens."""
    return flat if bias is None else flat + mass.to(flat.dtype) * bias.to(flat.dtype)


def is_plain(linear: nn.Module) -> bool:
    """Return True if a call of the module multiplies by its weight, adds its bias, and does nothing else. Return False for
    adapters, quantised or parametrised weights, replaced methods ``forward`` and modules with hooks, such as pruned ones.
    """
    return type(linear) is nn.Linear and not is_intercepted(linear)


def is_intercepted(module: nn.Module) -> bool:
    """Return True if the module has hooks, or if its method ``forward`` was replaced."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return "forward" in module.__dict__ or any(hooks)


def described(linear: nn.Module) -> str:
    """Return the class of a module that is not plain, with the reason if it is an nn.Linear."""
    if type(linear) is not nn.Linear:
        return f"a {type(linear).__name__}"
    return "one whose forward was replaced" if "forward" in linear.__dict__ else "one with hooks"


def _xavier_linear(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    """Return a linear map with Xavier-uniform weights and zero bias, as in Vaswani et al.'s code and
    torch.nn.MultiheadAttention.
    """
    linear = nn.Linear(inputs, outputs, bias)
    nn.init.xavier_uniform_(linear.weight)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
