"""Mixture of block attention (MoBA): yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ over the tokens j of k blocks.

A query attends to its own block and to the k − 1 other blocks with the highest qᵢ·k̄, where k̄ is the mean key of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from attn_zoo.attention.content._hashing import take
from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, DropoutOptions, Geometry, allowed_pairs, softmax_over_valid
from attn_zoo.contract.options import at_least, bounded, share_of_length
from attn_zoo.kernels.buckets import Layout, most_chunks
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries, real_positions


@dataclass
class Options(DropoutOptions):
    """Options of mixture of block attention."""

    block: int = share_of_length(16, most=512)
    """B, the number of tokens in a block."""
    chosen: int = bounded(3, at_least(1, "blocks that a query attends to, its own included"))
    """k, the number of blocks to which a query attends, its own block included. If there are fewer blocks, it attends to all."""


def sizes(keys: int, options: Options) -> tuple[int, int, int]:
    """Return the number of blocks, the number of blocks that a query chooses besides its own, and the number of groups. A group has
    up to B queries that chose the same block; B is the block size.
    """
    blocks = -(-keys // options.block)
    others = min(options.chosen, blocks) - 1
    return blocks, others, most_chunks(keys * others, blocks, options.block) if others else 0


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of attention, and of the products of queries and mean keys, which have no gradient. Attention
    compares each block of keys with its own queries and with the groups of queries that chose it.

    The state is the KV cache of keys and values.
    """
    n, b, inner = geometry.keys, options.block, geometry.inner_dim
    blocks, others, groups = sizes(n, options)
    choose = 2 * n * blocks * inner if others else 0
    attend = 4 * (blocks + groups) * b * b * inner
    state = FLOAT * n * geometry.cached_width() if geometry.causal else None
    return Cost(choose + attend, 0, backward_flops=2 * attend, state_bytes=state)


@register_attention(
    "moba",
    title="Mixture of blocks (MoBA)",
    paper="Lu et al. 2025, arXiv:2502.13189",
    equation="Section 2.2, blocks by the mean of their keys",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
    time="n^2 d / b + n k b d",
    memory="n^2 / b + n k b + n k d",
    cost=cost,
    softmax_limit=lambda geometry: MixtureOfBlocks(geometry, Options(block=geometry.keys, chosen=1)),
    variants={"two": {"block": 6, "chosen": 2}, "five": {"block": 4, "chosen": 5}},
)
class MixtureOfBlocks(Attention[Options]):
    """Softmax attention from each query to its own block of keys and to the k − 1 blocks whose mean keys score highest for it.

    Paper: Lu et al. 2025, Section 2.2: the choice of blocks, its causal form, and the rule that the query's own block counts among
        the k blocks.
    Symbols: B → block, k → chosen, K̄ → means.
    Differs: the paper has only the causal form. In the bidirectional form, a query chooses among all blocks. The mean key of a
        block is the mean of its valid keys, and a block without any valid key is never chosen. Means and scores of blocks are
        computed in float32 or more. If scores are equal, torch.topk decides.
    Choice: no gradient reaches the scores of blocks, as in the paper.
    """

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Return a warning if each query attends to all blocks."""
        b, k, n = options.block, options.chosen, geometry.keys
        return (f"{k} blocks of {b} tokens hold all {n} tokens: no token is left out",) if b * k >= n else ()

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs from n × n scores. Each query attends to its own block and to the k − 1 other blocks with the highest
        scores for it. All other tokens are masked.
        """
        at = torch.arange(key.shape[2], device=key.device) // self.options.block
        own, z = F.one_hot(at).bool(), torch.arange(int(at[-1]) + 1, device=key.device)
        member = own * real_positions(query, key_valid)[..., None].to(key.dtype)  # (batch, n, blocks)
        count = member.sum(dim=1)[:, None, None]
        gate = query @ (member.mT[:, None] @ key / count.mT.clamp(min=1)).mT
        others = z < at[:, None] if self.geometry.causal else ~own
        gate = gate.masked_fill(~others | (count == 0), -torch.inf).masked_fill(own, torch.inf)
        lowest = gate.sort(dim=-1, descending=True).values[..., min(self.options.chosen, len(z)) - 1, None]
        seen = ((gate >= lowest) & (gate > -torch.inf))[..., at]
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        scores = query @ key.mT / query.shape[-1] ** 0.5
        return softmax_over_valid(scores, seen if allowed is None else seen & allowed) @ value

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs. In one softmax, each query attends to its own block and to the blocks that it chose. Queries that
        chose the same block are compared with this block in groups of B (the size of a block), so about n k B scores are computed.
        """
        n, b = key.shape[2], self.options.block
        blocks, others, groups = sizes(n, self.options)

        def split(x: Shaped[Tensor, "batch heads n w"]) -> Shaped[Tensor, "batch heads blocks block w"]:
            return F.pad(x, (0, 0, 0, -n % b)).unflatten(2, (blocks, b))

        keys, values = split(key * key.shape[-1] ** -0.5), split(value)
        valid = split(real_positions(query, key_valid)[:, None, :, None].expand(-1, query.shape[1], -1, -1))[..., 0]
        within = valid[..., None, :].expand(-1, -1, -1, b, -1)
        within = within.tril() if self.geometry.causal else within
        scores, allowed = (x.flatten(2, 3)[:, :, :n] for x in (split(query) @ keys.mT, within))
        if others:
            chosen = self._choose(query, key, valid)
            bucket = chosen.flatten(2)  # the block of each pair of a query and a block that it chose
            layout = Layout.make(bucket[None], None, blocks, b, wraps=False)
            pair, place = layout.position[0].long(), layout.slot[0].long()
            block = F.pad(bucket, (0, 1), value=blocks).gather(2, pair[..., ::b])  # the block of each group
            far = take(query, pair // others).unflatten(2, (groups, b)) @ take(keys, block).mT
            scores = torch.cat([scores, take(far.flatten(2, 3), place).view(*scores.shape[:3], -1)], dim=-1)
            allowed = torch.cat([allowed, take(valid, chosen, places=2).flatten(3)], dim=-1)
        weights = F.dropout(softmax_over_valid(scores, allowed), self.dropout_rate).to(value.dtype)
        out = (split(weights[..., :b]) @ values).flatten(2, 3)[:, :, :n]
        if others:
            rows = take(weights[..., b:].reshape(*out.shape[:2], -1, b), pair).unflatten(2, (groups, b))
            far = (rows @ take(values, block)).flatten(2, 3)
            out = out + take(far, place).unflatten(2, (n, others)).sum(dim=3)
        return out

    @torch.no_grad()
    def _choose(
        self, query: Queries, key: Keys, valid: Bool[Tensor, "batch heads blocks block"]
    ) -> Int[Tensor, "batch heads queries others"]:
        """Return the blocks that each query attends to beside its own. If there are too few blocks, the number of blocks
        stands at the remaining places.
        """
        n, (blocks, b) = key.shape[2], valid.shape[2:]
        with without_autocast(query.device):  # so that the choice does not depend on autocast
            query, key = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (query, key))
            count = valid.sum(dim=-1)
            means = F.pad(key, (0, 0, 0, -n % b)).unflatten(2, (blocks, b)).sum(dim=3) / count.clamp(min=1)[..., None]
            own, z = torch.arange(n, device=key.device)[:, None] // b, torch.arange(blocks, device=key.device)
            others = self.others(z, own)
            gate = (query @ means.mT).masked_fill(~(others & (count > 0)[:, :, None]), -torch.inf)
        best = gate.topk(sizes(n, self.options)[1], dim=-1)
        return best.indices.masked_fill(best.values == -torch.inf, blocks)

    def others(self, z: Int[Tensor, " blocks"], own: Int[Tensor, "n 1"]) -> Bool[Tensor, "n blocks"]:
        """Return a mask that is True for each block in ``z`` that a query in block ``own`` may choose: all except ``own`` or, if
        causal, earlier ones.
        """
        return z < own if self.geometry.causal else z != own
