"""Fixed attention: yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ over the j with ⌊j / l⌋ = ⌊i / l⌋ or j mod l ≥ l - c."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.attention._kept import FLOAT
from attn_zoo.attention._masks import check_dropout
from attn_zoo.attention.sparse._block_masks import cut, cut_bytes
from attn_zoo.attention.sparse._flex import FlexAttends, flex_attention_over
from attn_zoo.contract import Capabilities, Cost, Geometry
from attn_zoo.kernels.cpu.block_sparse import BlockTable, BlockTableSize, attend_blocks, gathered_bytes, gathered_flops
from attn_zoo.registry import register_attention


@dataclass
class Options:
    """Options of fixed attention."""

    stride: int = 0
    """Positions of a block, l in the paper; 0 takes about the square root of the length it is built for."""
    summary: int = 1
    """Last positions of each block that all see, c in the paper; at most the block."""
    dropout: float = 0.0
    """Share of attention weights set to zero in training."""

    def __post_init__(self) -> None:
        if self.stride < 0:
            raise ValueError(f"fixed.stride counts positions, at least 1, or 0 for the root of the length; got {self.stride}")
        if self.summary < 0 or (self.stride and self.summary > self.stride):
            most = f"to stride={self.stride}" if self.stride else "on"
            raise ValueError(f"fixed.summary counts positions of a block, a whole number from 0 {most}; got {self.summary}")
        check_dropout("fixed", self.dropout)


def sizes(geometry: Geometry, options: Options) -> tuple[int, int]:
    """Positions of a block, and how many of them all see."""
    block = options.stride or math.ceil(math.sqrt(geometry.keys))
    return block, min(options.summary, block)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Each block against itself and all summaries, in whole blocks.

    Kept: queries where they are filled up, keys and values with the summaries behind them, and who looks at what. State: keys
    and values of the summaries and of a block, the last one or the one before it.
    """
    n, heads, d = geometry.keys, geometry.heads, geometry.head_dim
    block, summary = sizes(geometry, options)
    blocks = math.ceil(n / block)
    behind = math.ceil(blocks * summary / block)
    looks, slots = [BlockTableSize(blocks, 1 + behind)], (blocks + behind) * block
    last = n - (blocks - 1) * block
    held = (blocks - 1) * summary + max(last, block - summary if blocks > 1 else 0)
    flops, backward = gathered_flops(heads, block, d, looks)
    kept = cut_bytes(heads, n, block, d) + gathered_bytes(heads, looks, slots, causal=geometry.causal)
    kept += 2 * FLOAT * heads * slots * d if summary else 2 * cut_bytes(heads, n, block, d)
    return Cost(
        flops=flops,
        parameters=0,
        backward_flops=backward,
        activation_bytes={"eager": kept},
        state_bytes=2 * FLOAT * held * geometry.inner_dim if geometry.causal else None,
    )


@register_attention(
    "fixed",
    title="Fixed (Sparse Transformer)",
    paper="Child et al. 2019, arXiv:1904.10509",
    equation="Section 4.3, the fixed pattern",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
    time="n^1.5 d",
    memory="n^1.5 + n d",
    cost=cost,
    implementations=("eager", "tiled", "flex"),
    softmax_limit=lambda geometry: Fixed(geometry, Options(stride=geometry.keys)),
    variants={"three_summaries": {"summary": 3}, "no_summary": {"summary": 0}},
)
class Fixed(FlexAttends):
    """Softmax attention inside a block and to the last positions of every block.

    Paper: Child et al. 2019, Section 4.3, fixed pattern: A⁽¹⁾ is the own block, A⁽²⁾ the summaries.
    Symbols: l → stride, c → summary, t → stride - summary.
    Differs: every head sees the union of both parts in one softmax (the paper's merged head, Section 4.2), no key twice;
        without causality the summaries of later blocks are seen as well; all heads have the same summaries; weights are never
        stored but computed anew for the gradient, which can be taken once.
    """

    options: Options

    def attend(
        self,
        query: Float[Tensor, "batch heads n head_dim"],
        key: Float[Tensor, "batch heads n head_dim"],
        value: Float[Tensor, "batch heads n head_dim"],
        key_valid: Bool[Tensor, "batch n"] | None,
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """Summaries stand once more behind the blocks, in blocks of their own, and are left out of the block they come from."""
        batch, heads, n, _ = query.shape
        block, summary = sizes(self.geometry, self.options)
        blocks, device = math.ceil(n / block), query.device
        behind = math.ceil(blocks * summary / block)
        fill = behind * block - blocks * summary
        positions = torch.arange(blocks * block, device=device)
        valid = query.new_ones(batch, n, dtype=torch.bool) if key_valid is None else key_valid
        valid = F.pad(valid, (0, blocks * block - n)).unflatten(1, (blocks, block))
        last = block - summary
        apart, short = F.pad(valid[..., :last], (0, summary)), F.pad(valid[..., last:].flatten(1), (0, fill))
        valid = torch.cat([apart.flatten(1), short], dim=1)
        positions = torch.cat([positions, F.pad(positions.view(blocks, block)[:, last:].flatten(), (0, fill))])

        def with_summaries(tokens: Tensor) -> Float[Tensor, "batch_heads key_blocks block head_dim"]:
            own = cut(tokens, block)
            if not summary:
                return own
            short = F.pad(own[:, :, last:].flatten(1, 2), (0, 0, 0, fill))
            return torch.cat([own, short.unflatten(1, (behind, block))], dim=1)

        own, others = torch.arange(blocks, device=device), torch.arange(blocks, blocks + behind, device=device)
        seen = torch.cat([own[:, None], others.expand(blocks, -1)], dim=1)
        out = attend_blocks(
            cut(query, block),
            with_summaries(key),
            with_summaries(value),
            valid,
            [BlockTable(own, seen[None])],
            dropout=self.options.dropout if self.training else 0.0,
            positions=positions if self.geometry.causal else None,
        )
        return out.flatten(1, 2)[:, :n].unflatten(0, (batch, heads))

    attend_tiled = attend

    def attend_flex(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """PyTorch's FlexAttention over the same pairs."""
        block, summary = sizes(self.geometry, self.options)

        def sees(_: Tensor, query: Tensor, key: Tensor) -> Tensor:
            seen = (query // block == key // block) | (key % block >= block - summary)
            return seen & (key <= query) if self.geometry.causal else seen

        return flex_attention_over(sees, query, key, value, key_valid)
