"""Costs of a layer and of a block by formula: the mechanism's card, and the matrix products around it."""

from __future__ import annotations

from attn_zoo.contract import CompressingAttention, Cost
from attn_zoo.layer import MultiHeadAttention, Order


def layer_cost(layer: MultiHeadAttention) -> Cost:
    """Of an attention layer at the length it was built for, its tokens with a gradient; no activation bytes.

    FLOPs are those of the eager form in the order that the layer takes. The state is the mechanism's: projections hold none.
    """
    mechanism, g = layer.mechanism, layer.mechanism.geometry
    stated = mechanism.card.cost(g, mechanism.options)
    rows = {"query": g.queries, "key": g.keys, "value": g.keys}
    widths = {"query": layer.dim, "key": layer.context_dim, "value": layer.context_dim}
    maps = [(rows[name], widths[name]) for name in layer.reads] + [(g.queries, layer.dim)]
    for stream in layer.streams:
        name = "query" if stream.of == "queries" else "key"
        maps.append((rows[name] if stream.first is None else min(stream.first, rows[name]), widths[name]))
    products, attend, attend_backward = 0, stated.flops, stated.backward_flops
    if layer.order is Order.compress_first:
        assert isinstance(mechanism, CompressingAttention)
        short = mechanism.compressed_length()
        assert short is not None, "the layer compresses first only where the mechanism can"
        maps[1:3] = [(short, layer.context_dim)] * 2
        apart = mechanism.compression_flops(g.keys, g.inner_dim, inputs=2)
        once = mechanism.compression_flops(g.keys, layer.context_dim, inputs=1)
        gradients = 2 if any(p.requires_grad for p in mechanism.parameters()) else 1
        attend += once - apart
        attend_backward = None if attend_backward is None else attend_backward + gradients * (once - apart)
    products = sum(2 * length * width * layer.dim for length, width in maps)
    biased = layer.dim if layer.out.bias is not None else 0
    return Cost(
        flops=attend + products,
        parameters=stated.parameters + sum(width * layer.dim + biased for _, width in maps),
        backward_flops=None if attend_backward is None else attend_backward + 2 * products,
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
