"""Costs of an attention layer by formula."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from attn_zoo.contract import CompressingAttention, Cost
from attn_zoo.layer import MultiHeadAttention, Order


def layer_cost(layer: MultiHeadAttention) -> Cost:
    """Return the cost of an attention layer at the length that it was built for, by formula. The FLOPs of the backward pass
    include the gradient with respect to the input tokens. Bytes of activations are not included.

    The FLOPs of the mechanism come from its own formula. If the layer compresses tokens before it projects them to keys and values
    (see ``layer.order``), the projections cost less. The recurrent state includes that of the short convolution.
    """
    return total_cost(latent_cost(layer), source_cost(layer), answer_cost(layer), convolution_cost(layer))


def convolution_cost(layer: MultiHeadAttention) -> Cost:
    """Return the cost of the short convolution over the tokens of a layer, or 0 if the layer has none."""
    g, convolution = layer.mechanism.geometry, layer.short_convolution
    if convolution is None:
        return Cost(flops=0, parameters=0, backward_flops=0, state_bytes=0)
    taps = convolution.before + 1 + convolution.after
    flops = 2 * taps * g.keys * layer.dim
    held = min(taps, g.keys) * layer.dim * (taps > 1)
    return Cost(flops, taps * layer.dim, 2 * flops, state_bytes=4 * held)


def latent_cost(layer: MultiHeadAttention) -> Cost:
    """Return the cost of mapping tokens to latents (narrow vectors from which keys and values are made) and of normalising the
    latents, or 0 if the layer has no latents. The parameters include those of the norm."""
    g = layer.mechanism.geometry
    flops = 2 * g.keys * layer.context_dim * g.latent_dim
    return Cost(flops, (layer.context_dim + 1) * g.latent_dim, 2 * flops, state_bytes=0)


def source_cost(layer: MultiHeadAttention) -> Cost:
    """Return the cost of projecting the source tokens to keys, values and the additional inputs (streams) that have one vector per
    key. If the layer compresses the tokens to fewer positions first, the cost of this compression is included."""
    mechanism, g = layer.mechanism, layer.mechanism.geometry
    maps = [(g.keys, layer.source_dim, g.key_value_dim) for name in layer.reads if name != "query"]
    compress = 0
    if layer.order is Order.compress_first:
        assert isinstance(mechanism, CompressingAttention)
        short = mechanism.compressed_length()
        assert short is not None, "the layer compresses first only where the mechanism can"
        maps = [(short, layer.source_dim, g.key_value_dim)] * 2
        compress = mechanism.compression_flops(g.keys, layer.source_dim, inputs=1)
    made = total_cost(_projections(layer, maps), _streams(layer, "keys", g.keys))
    backward = 2 * made.flops + _gradients(layer) * compress
    return replace(made, flops=made.flops + compress, backward_flops=backward, state_bytes=0)


def answer_cost(layer: MultiHeadAttention) -> Cost:
    """Return the cost of the mechanism, the gate, the output projection, and the projections to queries and to the additional
    inputs (streams) that have one vector per query. The mechanism's compression of the tokens is left out if ``source_cost``
    includes it."""
    mechanism, g = layer.mechanism, layer.mechanism.geometry
    stated = mechanism.card.cost(g, mechanism.options)
    maps = [(g.queries, layer.dim, layer.dim)] * (("query" in layer.reads) + 1)
    compress = 0
    if layer.order is Order.compress_first:
        assert isinstance(mechanism, CompressingAttention)
        compress = mechanism.compression_flops(g.keys, g.inner_dim, inputs=2)
    made = total_cost(_projections(layer, maps), _streams(layer, "queries", g.queries), _gate(layer))
    attend_backward = stated.backward_flops
    backward = None if attend_backward is None else attend_backward - _gradients(layer) * compress + 2 * made.flops
    return Cost(
        flops=stated.flops - compress + made.flops,
        parameters=stated.parameters + made.parameters,
        backward_flops=backward,
        state_bytes=stated.state_bytes,
    )


def total_cost(*costs: Cost) -> Cost:
    """Return the sum of several costs, field by field. If a field is None in one of the costs, it is None in the sum."""
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
    """Return the cost of the linear map to the output gate, or 0 if the layer has no gate."""
    if layer.gate is None:
        return Cost(flops=0, parameters=0)
    flops = 2 * layer.mechanism.geometry.queries * layer.dim * layer.gate.out_features
    return Cost(flops, sum(p.numel() for p in layer.gate.parameters()))


def _streams(layer: MultiHeadAttention, of: str, tokens: int) -> Cost:
    """Return the cost of the additional inputs (streams) that have one vector per query, or per key. A stream with one number per
    head is a product with one column per head, because the weights are summed over the channels of a head first."""
    made, biased = [], layer.out.bias is not None
    for stream in layer.streams:
        if stream.of == of:
            source, width = (layer.dim if of == "queries" else layer.source_dim), layer.widths[stream.starts_as]
            rows = tokens if stream.first is None else min(stream.first, tokens)
            columns = width // layer.mechanism.geometry.head_dim if stream.per_head else width
            made.append(Cost(flops=2 * rows * source * columns, parameters=(source + biased) * width))
    return total_cost(*made)


def _gradients(layer: MultiHeadAttention) -> int:
    """Return how many factors in a product of the compression need a gradient: the tokens, and the compression matrix if it is
    trained."""
    return 2 if any(p.requires_grad for p in layer.mechanism.parameters()) else 1
