"""Costs of a layer and of a block by formula: the mechanism's card, and the matrix products around it."""

from __future__ import annotations

from dataclasses import replace

from attn_zoo.contract import CompressingAttention, Cost, Stream
from attn_zoo.layer import MultiHeadAttention, Order


def layer_cost(layer: MultiHeadAttention) -> Cost:
    """Of an attention layer at the length it was built for, its tokens with a gradient; no activation bytes.

    FLOPs are those of the eager form in the order that the layer takes. The state is the mechanism's: projections hold none.
    """
    made, answered = remember_cost(layer), recall_cost(layer)
    backward = (made.backward_flops, answered.backward_flops)
    return Cost(
        flops=made.flops + answered.flops,
        parameters=made.parameters + answered.parameters,
        backward_flops=None if None in backward else sum(flops for flops in backward if flops is not None),
        state_bytes=answered.state_bytes,
    )


def remember_cost(layer: MultiHeadAttention) -> Cost:
    """Of ``layer.remember``: keys, values and their streams, compressed where the layer compresses first."""
    mechanism, g = layer.mechanism, layer.mechanism.geometry
    maps = [(g.keys, layer.context_dim) for name in layer.reads if name != "query"]
    compress = 0
    if layer.order is Order.compress_first:
        assert isinstance(mechanism, CompressingAttention)
        short = mechanism.compressed_length()
        assert short is not None, "the layer compresses first only where the mechanism can"
        maps = [(short, layer.context_dim)] * 2
        compress = mechanism.compression_flops(g.keys, layer.context_dim, inputs=1)
    maps += [(_rows(stream, g.keys), layer.context_dim) for stream in layer.streams if stream.of == "keys"]
    made = _projections(layer, maps)
    return replace(made, flops=made.flops + compress, backward_flops=2 * made.flops + _gradients(layer) * compress)


def recall_cost(layer: MultiHeadAttention) -> Cost:
    """Of a call with ``remembered``: queries, the mechanism without what ``remember`` does of it, and the output."""
    mechanism, g = layer.mechanism, layer.mechanism.geometry
    stated = mechanism.card.cost(g, mechanism.options)
    maps = [(g.queries, layer.dim)] * (("query" in layer.reads) + 1)
    maps += [(_rows(stream, g.queries), layer.dim) for stream in layer.streams if stream.of == "queries"]
    compress = 0
    if layer.order is Order.compress_first:
        assert isinstance(mechanism, CompressingAttention)
        compress = mechanism.compression_flops(g.keys, g.inner_dim, inputs=2)
    made, attend_backward = _projections(layer, maps), stated.backward_flops
    backward = None if attend_backward is None else attend_backward - _gradients(layer) * compress + 2 * made.flops
    return Cost(
        flops=stated.flops - compress + made.flops,
        parameters=stated.parameters + made.parameters,
        backward_flops=backward,
        state_bytes=stated.state_bytes,
    )


def block_cost(layer: MultiHeadAttention, hidden: int) -> Cost:
    """Of a transformer block: two norms, the layer, and an MLP with ``hidden`` units. See ``layer_cost``."""
    inner, dim = layer_cost(layer), layer.dim
    mlp = 4 * layer.mechanism.geometry.queries * dim * hidden
    return Cost(
        flops=inner.flops + mlp,
        parameters=inner.parameters + 4 * dim + (2 * dim + 1) * hidden + dim,
        backward_flops=None if inner.backward_flops is None else inner.backward_flops + 2 * mlp,
        state_bytes=inner.state_bytes,
    )


def _projections(layer: MultiHeadAttention, maps: list[tuple[int, int]]) -> Cost:
    """Of linear maps of so many rows from such widths to the layer's."""
    biased = layer.dim if layer.out.bias is not None else 0
    return Cost(
        flops=sum(2 * rows * width * layer.dim for rows, width in maps),
        parameters=sum(width * layer.dim + biased for _, width in maps),
    )


def _rows(stream: Stream, tokens: int) -> int:
    return tokens if stream.first is None else min(stream.first, tokens)


def _gradients(layer: MultiHeadAttention) -> int:
    """Factors of a compression's products that have a gradient: the tokens, and what compresses them where it trains."""
    return 2 if any(p.requires_grad for p in layer.mechanism.parameters()) else 1
