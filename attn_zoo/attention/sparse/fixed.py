"""Fixed attention: yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ over the keys j in the block of i, and over the last c keys of every block of l
keys.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_zoo.attention.sparse._pairs import PairwiseAttention
from attn_zoo.contract import FLOAT, Bound, Capabilities, Cost, DropoutOptions, Geometry, bounded, softmax_over_valid
from attn_zoo.kernels.cpu._chunks import into_chunks
from attn_zoo.kernels.cpu.block_sparse import attend_summaries, summary_blocks, table_flops
from attn_zoo.kernels.flex import MaskMod
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries, real_positions


@dataclass
class Options(DropoutOptions):
    """Options of fixed attention."""

    stride: int = bounded(0, Bound(lambda size: size >= 0, "must be at least 1, or 0 (the square root of the length)"))
    """l, the number of positions in a block. 0 means √n, rounded up, where n is the length for which the mechanism is built."""
    summary: int = 1
    """c, the number of positions at the end of each block that all positions see. It must not exceed the size of a block."""

    def __post_init__(self) -> None:
        if self.summary < 0 or 0 < self.stride < self.summary:
            rule = f"an integer from 0 to stride={self.stride}" if self.stride else "an integer of at least 0"
            raise ValueError(f"fixed.summary must be {rule}, because it counts positions of a block; got {self.summary}")


def sizes(geometry: Geometry, options: Options) -> tuple[int, int]:
    """Return the number l of positions in a block, and the number c of its last positions, which all positions see."""
    block = options.stride or math.ceil(math.sqrt(geometry.keys))
    return block, min(options.summary, block)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of attention from each block to itself and to the summaries (the last positions) of all
    blocks. The summaries are gathered into blocks, which count as full.

    The state holds keys and values of the summaries and of the present block. Its largest size is counted.
    """
    n = geometry.keys
    block, summary = sizes(geometry, options)
    blocks = math.ceil(n / block)
    last = n - (blocks - 1) * block
    # largest at the end of the last block, or of the block before it
    held = (blocks - 1) * summary + max(last, block - summary if blocks > 1 else 0)
    block_pairs = blocks * (1 + summary_blocks(n, block, summary))
    flops, backward = table_flops(geometry.heads, block, geometry.head_dim, block_pairs)
    state = FLOAT * held * geometry.cached_width() if geometry.causal else None
    return Cost(flops=flops, parameters=0, backward_flops=backward, state_bytes=state)


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
class Fixed(PairwiseAttention[Options]):
    """Softmax attention from each query to its own block and to the last positions (summaries) of every block.

    Paper: Child et al. 2019, Section 4.3, fixed pattern: A⁽¹⁾ is the query's own block, A⁽²⁾ the summaries.
    Symbols: l → stride, c → summary, t → stride - summary.
    Differs: every head sees A⁽¹⁾ and A⁽²⁾ in one softmax (the paper's merged head, Section 5.1), and each key counts once. If
        bidirectional, a position also sees the summaries of later blocks. All heads have the same summaries.
    Nature: If causal, a position sees only the last positions of earlier blocks. Recall across blocks therefore needs a layer
        that first gathers tokens at these positions.
    """

    def mask_mod(self, n: int, device: torch.device) -> MaskMod:
        """Return a function of (head, query index, key index) that returns True if the key is in the block of the query, or is a
        summary (one of the last positions of a block). If causal, later keys are excluded.
        """
        (block, summary), causal = sizes(self.geometry, self.options), self.geometry.causal

        def seen(_: Tensor, query: Tensor, key: Tensor) -> Tensor:
            found = (query // block == key // block) | (key % block >= block - summary)
            return found & (key <= query) if causal else found

        return seen

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs, computed in blocks of queries. One softmax runs over the query's own block and the last keys
        (summaries) of all blocks. A key in both counts once.
        """
        n, (stride, summary) = query.shape[2], sizes(self.geometry, self.options)
        last = stride - summary
        valid = real_positions(query, key_valid)
        # (batch, heads, blocks, stride, head_dim)
        query, key, value = (into_chunks(tokens, stride) for tokens in (query, key, value))
        real = F.pad(valid, (0, -n % stride)).unflatten(1, (-1, stride))[:, None]
        position = torch.arange(real.shape[2] * stride, device=query.device).unflatten(0, (-1, stride))

        own_key, own_value = key[:, :, :, :last], value[:, :, :, :last]
        summary_key, summary_value = (x[:, :, :, last:].flatten(2, 3) for x in (key, value))
        own = real[:, :, :, None, :last].expand(-1, -1, -1, stride, -1)
        summaries = real[:, :, :, last:].flatten(2)[:, :, None, None].expand(-1, -1, real.shape[2], stride, -1)
        if self.geometry.causal:
            own = own & (position[:, None, :last] <= position[:, :, None])
            summaries = summaries & (position[:, last:].flatten() <= position[:, :, None])

        scores = torch.cat([query @ own_key.mT, query @ summary_key[:, :, None].mT], dim=-1) * query.shape[-1] ** -0.5
        weights = softmax_over_valid(scores, torch.cat([own, summaries], dim=-1))
        weights = F.dropout(weights, self.options.dropout, self.training)
        out = weights[..., :last] @ own_value + weights[..., last:] @ summary_value[:, :, None]
        return out.flatten(2, 3)[:, :, :n]

    def attend_tiled(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of ``attend``, computed in tiles that fit CPU caches."""
        block, summary = sizes(self.geometry, self.options)
        return attend_summaries(
            query, key, value, key_valid, block=block, summary=summary, causal=self.geometry.causal, dropout=self.dropout_rate
        )
