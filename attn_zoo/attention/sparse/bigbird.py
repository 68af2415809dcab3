"""BigBird: yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ over the keys j of near blocks, global blocks and random blocks. Global blocks see all
blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attn_zoo.attention.sparse._block_masks import BlockPatternAttention, Pattern
from attn_zoo.contract import Bound, Capabilities, Cost, DropoutOptions, Geometry, at_least, bounded, share_of_length
from attn_zoo.registry import register_attention

ODD = Bound(
    lambda w: w > 0 and w % 2 == 1,
    "must be odd and at least 1, because it counts the block of the query and equally many blocks on either side",
)
EVEN = Bound(
    lambda g: g >= 0 and g % 2 == 0,
    "must be even and at least 0, because half of these blocks are the first ones and half the last",
)


@dataclass
class Options(DropoutOptions):
    """Options of BigBird."""

    block: int = share_of_length(16, most=64)
    """Number of positions in a block. The paper calls it b, and uses 64."""
    window_blocks: int = bounded(3, ODD)
    """Number of adjacent blocks that a block sees, itself included. It must be odd. The paper calls it w."""
    global_blocks: int = bounded(2, EVEN)
    """Number of blocks that see all blocks and that all blocks see. It must be even: half of them are the first blocks, half the
    last. The paper calls it g.
    """
    random_blocks: int = bounded(1, at_least(0, "blocks"))
    """Number of random blocks that a block sees, drawn separately for each head. The paper calls it r, and uses 3."""


def pattern(geometry: Geometry, options: Options) -> Pattern:
    """Return the pattern that determines which blocks each block sees."""
    ends = options.global_blocks // 2
    return Pattern(options.block, options.window_blocks // 2, first=ends, last=ends, random=options.random_blocks)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of attention from each block to g global, w window and r random blocks, and from global
    blocks to all blocks. Every block is counted as if it saw a whole window, although blocks at the ends of the sequence see less.
    """
    return pattern(geometry, options).cost(geometry)


@register_attention(
    "bigbird",
    title="BigBird",
    paper="Zaheer et al. 2020, arXiv:2007.14062",
    equation="Eq. AT with the graph of Section 2 (internal transformer construction), blocks as in Appendix D",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=False, any_length=True, random_at_build=True),
    time="n b d",
    memory="n b + n d",
    cost=cost,
    implementations=("eager", "tiled", "flex"),
    softmax_limit=lambda geometry: BigBird(geometry, Options(block=geometry.keys)),
    variants={
        "larger": {"block": 8, "random_blocks": 2},
        "without_globals": {"window_blocks": 1, "global_blocks": 0, "random_blocks": 3},
        "without_random": {"window_blocks": 5, "global_blocks": 4, "random_blocks": 0},
    },
)
class BigBird(BlockPatternAttention[Options]):
    """Softmax attention to a window of blocks, to global blocks at both ends, and to random blocks.

    Paper: Zaheer et al. 2020, Section 2 and Appendix D (the ITC form, in which existing tokens are global).
    Symbols: b → block, w → window_blocks, g → global_blocks, r → random_blocks.
    Differs: the window does not wrap around the ends. Random blocks are neither global nor in the window. One seed per head
        (``seeds``) determines them at any length; the seeds are drawn when the mechanism is built. The last block may be shorter.
        With padding, the last blocks of the padded input are global.
    """

    layout = staticmethod(pattern)
    seeds: Tensor

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.register_buffer("seeds", torch.randint(2**40, (geometry.heads,)))

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Return a warning if there are so few blocks that every block sees all blocks."""
        o = options
        if (o.window_blocks + o.global_blocks + o.random_blocks) * o.block < geometry.keys:
            return ()
        return (
            f"a block of {o.block} tokens is compared with as many blocks as the {geometry.keys} tokens fill: nothing is saved",
        )

    def head_seeds(self, device: torch.device) -> Tensor:
        """Return the random seed of each head, which was drawn when the mechanism was built."""
        return self.seeds
