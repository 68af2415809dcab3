"""Costs of a layer and of a transformer block by formula: the formula on the mechanism's card, plus the matrix products around
it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from attn_zoo.contract import CompressingAttention, Cost, Stream
from attn_zoo.layer import MultiHeadAttention, Order


def layer_cost(layer: MultiHeadAttention) -> Cost:
    """Return the cost of an attention layer at the length that it was built for, including a gradient with respect to its tokens.
    Bytes of activations are not included.

    FLOPs are those of the implementation that the card counts, in the order of operations ``layer.order``. State bytes are those of
    the mechanism and of the short convolution; projections have no state.
    """
    return total_cost(latent_cost(layer), source_cost(layer), answer_cost(layer), convolution_cost(layer))


def convolution_cost(layer: MultiHeadAttention) -> Cost:
    """Return the cost of the layer's short convolution over tokens. It is 0 if there is none."""
    g, convolution = layer.mechanism.geometry, layer.short_convolution
    if convolution is None:
        return Cost(flops=0, parameters=0, backward_flops=0, state_bytes=0)
    taps = convolution.before + 1 + convolution.after
    flops = 2 * taps * g.keys * layer.dim
    held = min(taps, g.keys) * layer.dim * (taps > 1)
    return Cost(flops, taps * layer.dim, 2 * flops, state_bytes=4 * held)


def latent_cost(layer: MultiHeadAttention) -> Cost:
    """Return the cost of computing the layer's latents from its tokens, with the weights of the norm. It is 0 if the layer has no
    latents."""
    g = layer.mechanism.geometry
    flops = 2 * g.keys * layer.context_dim * g.latent_dim
    return Cost(flops, (layer.context_dim + 1) * g.latent_dim, 2 * flops, state_bytes=0)


def source_cost(layer: MultiHeadAttention) -> Cost:
    """Return the cost of the projections to keys, values and additional inputs made from keys or values. If the layer compresses
    before it projects, the compression is included."""
    mechanism, g = layer.mechanism, layer.mechanism.geometry
    maps = [(g.keys, layer.source_dim, g.key_value_dim) for name in layer.reads if name != "query"]
    compress = 0
    if layer.order is Order.compress_first:
        assert isinstance(mechanism, CompressingAttention)
        short = mechanism.compressed_length()
        assert short is not None, "the layer compresses first only where the mechanism can"
        maps = [(short, layer.source_dim, g.key_value_dim)] * 2
        compress = mechanism.compression_flops(g.keys, layer.source_dim, inputs=1)
    maps += [
        (_rows(stream, g.keys), layer.source_dim, layer.widths[stream.starts_as]) for stream in layer.streams if stream.of == "keys"
    ]
    made = _projections(layer, maps)
    backward = 2 * made.flops + _gradients(layer) * compress
    return replace(made, flops=made.flops + compress, backward_flops=backward, state_bytes=0)


def answer_cost(layer: MultiHeadAttention) -> Cost:
    """Return the cost of the rest of a layer: queries, other additional projections, mechanism, gate and output projection. The
    compression that ``source_cost`` includes is not counted again."""
    mechanism, g = layer.mechanism, layer.mechanism.geometry
    stated = mechanism.card.cost(g, mechanism.options)
    maps = [(g.queries, layer.dim, layer.dim)] * (("query" in layer.reads) + 1)
    maps += [(_rows(stream, g.queries), layer.dim, layer.dim) for stream in layer.streams if stream.of == "queries"]
    compress = 0
    if layer.order is Order.compress_first:
        assert isinstance(mechanism, CompressingAttention)
        compress = mechanism.compression_flops(g.keys, g.inner_dim, inputs=2)
    made, attend_backward = total_cost(_projections(layer, maps), _gate(layer)), stated.backward_flops
    backward = None if attend_backward is None else attend_backward - _gradients(layer) * compress + 2 * made.flops
    return Cost(
        flops=stated.flops - compress + made.flops,
        parameters=stated.parameters + made.parameters,
        backward_flops=backward,
        state_bytes=stated.state_bytes,
    )


def block_cost(layer: MultiHeadAttention, hidden: int) -> Cost:
    """Return the cost of a transformer block: two norms, the attention layer, and an MLP with ``hidden`` units. See
    ``layer_cost``."""
    inner, dim = layer_cost(layer), layer.dim
    mlp = 4 * layer.mechanism.geometry.queries * dim * hidden
    return Cost(
        flops=inner.flops + mlp,
        parameters=inner.parameters + 4 * dim + (2 * dim + 1) * hidden + dim,
        backward_flops=None if inner.backward_flops is None else inner.backward_flops + 2 * mlp,
        state_bytes=inner.state_bytes,
    )


def total_cost(*costs: Cost) -> Cost:
    """Return the sum of several costs. A count is None if one of the costs does not state it."""
    return Cost(
        flops=sum(cost.flops for cost in costs),
        parameters=sum(cost.parameters for cost in costs),
        backward_flops=_total(cost.backward_flops for cost in costs),
        state_bytes=_total(cost.state_bytes for cost in costs),
    )


def _total(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)


def _projections(layer: MultiHeadAttention, maps: list[tuple[int, int, int]]) -> Cost:
    """Return the cost of linear maps, each given as (rows, input width, output width)."""
    biased = layer.out.bias is not None
    return Cost(
        flops=sum(2 * rows * width * made for rows, width, made in maps),
        parameters=sum((width + biased) * made for _, width, made in maps),
    )


def _gate(layer: MultiHeadAttention) -> Cost:
    """Return the cost of the linear map to the output gate, or 0 if there is none."""
    if layer.gate is None:
        return Cost(flops=0, parameters=0)
    flops = 2 * layer.mechanism.geometry.queries * layer.dim * layer.gate.out_features
    return Cost(flops, sum(p.numel() for p in layer.gate.parameters()))


def _rows(stream: Stream, tokens: int) -> int:
    return tokens if stream.first is None else min(stream.first, tokens)


def _gradients(layer: MultiHeadAttention) -> int:
    """Number of factors in a product of the compression that need a gradient: the tokens, and the compression if it is trained."""
    return 2 if any(p.requires_grad for p in layer.mechanism.parameters()) else 1
