"""Local attention: yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ over the keys j in the block of i and in w adjacent blocks on each side."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attn_zoo.attention.sparse._block_masks import BlockPatternAttention, Pattern
from attn_zoo.contract import Capabilities, Cost, DropoutOptions, Geometry, SinkOptions, at_least, bounded, share_of_length
from attn_zoo.registry import register_attention


@dataclass
class Options(SinkOptions, DropoutOptions):
    """Options of local attention."""

    block: int = share_of_length(4, most=256)
    """Number of positions in a block."""
    neighbours: int = bounded(0, at_least(0, "blocks on either side"))
    """w, the number of adjacent blocks that a block sees on each side or, if causal, on the left."""


def pattern(geometry: Geometry, options: Options) -> Pattern:
    """Return the pattern that determines which blocks each block sees."""
    return Pattern(options.block, options.neighbours, causal=geometry.causal)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of attention from each block to itself and to its neighbours. The backward pass has twice as
    many FLOPs.
    """
    in_tiles = pattern(geometry, options).cost(geometry)
    return replace(in_tiles, parameters=geometry.heads * options.sinks, backward_flops=2 * in_tiles.flops)


@register_attention(
    "local",
    title="Local (blocks)",
    paper="Tay et al. 2021, arXiv:2011.04006",
    equation="Local attention of Section 3.1, a block being non-overlapping",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
    time="n b d",
    memory="n b + n d",
    cost=cost,
    implementations=("eager", "flex"),
    softmax_limit=lambda geometry: Local(geometry, Options(block=geometry.keys)),
    variants={"small": {"block": 6}, "neighbours": {"block": 4, "neighbours": 2}, "sinks": {"sinks": True}},
)
class Local(BlockPatternAttention[Options]):
    """Softmax attention within blocks that do not overlap, or to a query's own block and its neighbours.

    Paper: Tay et al. 2021 (Long Range Arena). In its baseline Local, a query sees only its own block.
    Symbols: b → block, w → neighbours.
    Differs: neighbours and sinks (learned scores in the softmax that belong to no key) are additions.
    Nature: Without neighbours, no number of layers moves information across the borders of blocks. So tokens of other blocks are
        neither recalled nor copied.
    """

    layout = staticmethod(pattern)
