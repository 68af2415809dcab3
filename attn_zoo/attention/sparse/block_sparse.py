"""Block-sparse attention: yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ over the keys j of some blocks. A fixed layout determines which blocks
each block sees.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from attn_zoo.attention.sparse._block_masks import BlockPatternAttention, Pattern
from attn_zoo.contract import Bound, Capabilities, Cost, DropoutOptions, Geometry, at_least, bounded, share_of_length
from attn_zoo.registry import register_attention

BLOCKS = at_least(0, "blocks")
SEED = Bound(lambda seed: 0 <= seed < 2**31, f"must be an integer from 0 to {2**31 - 1}")


@dataclass
class Options(DropoutOptions):
    """Options of block-sparse attention."""

    block: int = share_of_length(16, most=64)
    """Number of positions in a block."""
    local_blocks: int = bounded(1, BLOCKS)
    """Number of adjacent blocks that a block sees on each side or, if causal, on the left."""
    global_blocks: int = bounded(1, BLOCKS)
    """Number of first blocks that see all blocks and that all blocks see."""
    random_blocks: int = bounded(1, BLOCKS)
    """Number of random blocks that a block sees. They are drawn separately for each head."""
    seed: int = bounded(0, SEED)
    """Seed that determines the random blocks."""


def pattern(geometry: Geometry, options: Options) -> Pattern:
    """Return the pattern that determines which blocks each block sees."""
    o = options
    return Pattern(o.block, o.local_blocks, first=o.global_blocks, random=o.random_blocks, causal=geometry.causal)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of attention from each block to the blocks that it sees. Every block is counted as if it
    saw a whole window, although blocks at the ends of the sequence see less.
    """
    return pattern(geometry, options).cost(geometry)


@register_attention(
    "block_sparse",
    title="Block-sparse",
    paper="Child et al. 2019, arXiv:1904.10509",
    equation="Eq. 2 and 3, S being whole blocks (Section 5.5)",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
    time="n b d",
    memory="n b + n d",
    cost=cost,
    implementations=("eager", "tiled", "flex"),
    softmax_limit=lambda geometry: BlockSparse(geometry, Options(block=geometry.keys)),
    variants={
        "window": {"block": 4, "local_blocks": 2, "global_blocks": 0, "random_blocks": 0},
        "random": {"block": 4, "local_blocks": 0, "global_blocks": 0, "random_blocks": 3},
        "globals": {"block": 4, "local_blocks": 0, "global_blocks": 2, "random_blocks": 2, "seed": 7},
    },
)
class BlockSparse(BlockPatternAttention[Options]):
    """Softmax attention to a fixed set of blocks: adjacent blocks, the first blocks, and random blocks from a seed in the options.

    Paper: Child et al. 2019, whose kernels compute attention block by block under a given layout.
    Symbols: S → Pattern, b → block.
    Differs: the layout (which blocks a block sees) follows from options instead of a table. If causal, random blocks are drawn from
        earlier blocks.
    """

    layout = staticmethod(pattern)

    def head_seeds(self, device: torch.device) -> Int[Tensor, "heads"]:
        """Return the random seed of each head, which follows from the option ``seed``."""
        heads = self.geometry.heads
        return torch.arange(heads, device=device) + heads * self.options.seed
