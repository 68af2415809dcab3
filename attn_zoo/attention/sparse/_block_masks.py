"""Patterns of blocks that see blocks: windows, global blocks and random ones, as in BigBird."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attn_zoo.attention._kept import FLOAT
from attn_zoo.attention.sparse._flex import FlexAttends, MaskMod, flex_attention_over
from attn_zoo.contract import Cost, Geometry
from attn_zoo.kernels.cpu.block_sparse import BlockTable, BlockTableSize, attend_blocks, gathered_bytes, gathered_flops

SPREAD, MIX = 0x1E3779B97F4A7C15, (0x3F58476D1CE4E5B9, 0x14D049BB133111EB)
"""Odd constants without a pattern, as in splitmix64."""


def cut(tokens: Float[Tensor, "batch heads n head_dim"], block: int) -> Float[Tensor, "batch_heads blocks block head_dim"]:
    """Into blocks, filled up with zeros."""
    fill = -tokens.shape[2] % block
    return (F.pad(tokens, (0, 0, 0, fill)) if fill else tokens).flatten(0, 1).unflatten(1, (-1, block))


def cut_bytes(heads: int, n: int, block: int, head_dim: int) -> int:
    """Bytes of float32 that ``cut`` makes of one tensor of one example: none where blocks divide the length, a view does."""
    return 0 if n % block == 0 else FLOAT * heads * math.ceil(n / block) * block * head_dim


def mixed(numbers: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Whole numbers from 0 that look random, the same for the same numbers, on every device."""
    for factor in MIX:
        numbers = (numbers ^ ((numbers >> 31) & 0x1FFFFFFFF)) * factor
    return (numbers >> 20) & 0xFFFFFFFFF


@dataclass(frozen=True, slots=True)
class Pattern:
    """Blocks that blocks see: all those up to ``window`` away, the global ones at either end, and some at random.

    Global ones see all. Causal: of these the past, without global blocks at the end; what is drawn does not depend on the length.
    """

    block: int
    window: int
    first: int = 0
    last: int = 0
    random: int = 0
    causal: bool = False

    def sizes(self, n: int) -> list[BlockTableSize]:
        """Of each look, that of the global blocks last."""
        blocks, ends = math.ceil(n / self.block), self.first + self.last
        middle = blocks - ends
        if middle <= 0:
            return [BlockTableSize(blocks, blocks)]
        some = BlockTableSize(middle, ends + self._near(middle) + min(self.random, middle), drawn=self.random > 0)
        return [some, BlockTableSize(ends, ends if self.causal else blocks)] if ends else [some]

    def _near(self, middle: int) -> int:
        return min((1 if self.causal else 2) * self.window + 1, middle)

    def looks(self, n: int, seeds: Int[Tensor, "heads"]) -> list[BlockTable]:
        """Who looks at what at a length of ``n``, drawn by a seed for each head."""
        blocks = math.ceil(n / self.block)
        every, end = torch.arange(blocks, device=seeds.device), blocks - self.last
        if end <= self.first:
            return [BlockTable(every, every.repeat(1, blocks, 1))]
        rows = torch.arange(self.first, end, device=seeds.device)
        nearest = rows[:, None] + torch.arange(self._near(len(rows)), device=seeds.device) - self.window
        if self._near(len(rows)) == len(rows):  # the window may be wider than there are blocks
            nearest = rows.expand(len(rows), -1)
        off = ((nearest - rows[:, None]).abs() > self.window) | (nearest < self.first) | (nearest >= end)
        ends = torch.cat([every[: self.first], every[end:]])
        keys = torch.cat([ends.expand(len(rows), -1), nearest.masked_fill(off, -1)], dim=1)[None]
        if self.random:
            keys = torch.cat([keys.expand(len(seeds), -1, -1), self.draw(rows, end, seeds)], dim=2)
        seen = ends if self.causal else every
        return [BlockTable(rows, keys), BlockTable(ends, seen.repeat(1, len(ends), 1))] if len(ends) else [BlockTable(rows, keys)]

    def draw(self, rows: Int[Tensor, "middle"], end: int, seeds: Int[Tensor, "heads"]) -> Int[Tensor, "heads middle random"]:
        """Blocks that are neither global nor in the window, none twice, all as likely; -1 where there are no more."""
        low, high = (rows - self.window).clamp(min=self.first), (rows + self.window + 1).clamp(max=end)
        there = low - self.first + (0 if self.causal else end - high)
        found: list[Tensor] = []
        for draw in range(min(self.random, len(rows))):
            rank = mixed(seeds[:, None] + SPREAD * (rows * self.random + draw + 1)) % (there - draw).clamp(min=1)
            for earlier in torch.stack(found).sort(dim=0).values if found else ():
                rank = rank + (rank >= earlier)  # it counts those that are left
            found.append(torch.where(there > draw, rank, len(rows)))
        ranks = torch.stack(found, dim=-1)
        chosen = ranks + self.first
        chosen = torch.where(chosen < low[:, None], chosen, chosen + (high - low)[:, None])
        return chosen.masked_fill(ranks >= there[:, None], -1)

    def sees(self, n: int, seeds: Int[Tensor, "heads"] | None = None) -> MaskMod:
        """The same pair by pair at a length of ``n``."""
        blocks = math.ceil(n / self.block)
        end = blocks - self.last
        drawn: tuple[Tensor, ...] = ()
        if seeds is not None and self.random and self.first < end:
            rows = torch.arange(self.first, end, device=seeds.device)
            drawn = F.pad(self.draw(rows, end, seeds), (0, 0, self.first, self.last), value=-1).unbind(dim=2)

        def sees(head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            i, j = query // self.block, key // self.block
            seen = ((i - j).abs() <= self.window) | (i < self.first) | (j < self.first) | (i >= end) | (j >= end)
            for draw in drawn:
                seen = seen | (draw[head, i] == j)
            return seen & (key <= query) if self.causal else seen

        return sees

    def attend(
        self,
        query: Float[Tensor, "batch heads n head_dim"],
        key: Float[Tensor, "batch heads n head_dim"],
        value: Float[Tensor, "batch heads n head_dim"],
        key_valid: Bool[Tensor, "batch n"] | None,
        *,
        dropout: float,
        seeds: Int[Tensor, "heads"] | None = None,
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """One softmax for each query over all that its block sees."""
        batch, heads, n, _ = query.shape
        valid = query.new_ones(batch, n, dtype=torch.bool) if key_valid is None else key_valid
        valid = F.pad(valid, (0, -n % self.block))
        seeds = torch.zeros(1, dtype=torch.long, device=query.device) if seeds is None else seeds
        query, key, value = (cut(tokens, self.block) for tokens in (query, key, value))
        positions = torch.arange(valid.shape[1], device=query.device) if self.causal else None
        out = attend_blocks(query, key, value, valid, self.looks(n, seeds), dropout=dropout, positions=positions)
        return out.flatten(1, 2)[:, :n].unflatten(0, (batch, heads))

    def attend_flex(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, seeds: Tensor | None = None
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """``attend`` by PyTorch's FlexAttention, without dropout."""
        sees = self.sees(query.shape[2], seeds)
        return flex_attention_over(sees, query, key, value, key_valid, by_head=self.random > 0)

    def cost(self, geometry: Geometry) -> Cost:
        """Of ``attend``: blocks against all blocks they look at, absent ones included.

        Kept: queries, keys and values where they are filled up, and who looks at what. State: keys and values of the window and
        the global blocks, or of all the past if some of it is drawn.
        """
        n, heads, d = geometry.keys, geometry.heads, geometry.head_dim
        sizes, slots = self.sizes(n), math.ceil(n / self.block) * self.block
        flops, backward = gathered_flops(heads, self.block, d, sizes)
        kept = 3 * cut_bytes(heads, n, self.block, d) + gathered_bytes(heads, sizes, slots, causal=self.causal)
        held = n if self.random else min(n, (self.first + self.window + 1) * self.block)
        return Cost(
            flops=flops,
            parameters=0,
            backward_flops=backward,
            activation_bytes={"eager": kept},
            state_bytes=2 * FLOAT * held * geometry.inner_dim if self.causal else None,
        )


class BlockPatternAttention(FlexAttends):
    """One softmax for each query over all that its block sees. Subclasses say which blocks that are."""

    @abstractmethod
    def pattern(self) -> Pattern:
        """The layout of blocks."""

    def draws_by(self, device: torch.device) -> Int[Tensor, "heads"] | None:
        """A seed for each head, where some blocks are drawn."""
        return None

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """A block as long as the input."""
        if options.block < geometry.keys:
            return ()
        return (f"block={options.block} is no shorter than the {geometry.keys} tokens: every token sees all",)

    def attend(
        self,
        query: Float[Tensor, "batch heads n head_dim"],
        key: Float[Tensor, "batch heads n head_dim"],
        value: Float[Tensor, "batch heads n head_dim"],
        key_valid: Bool[Tensor, "batch n"] | None,
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """Gathered blocks; see ``Pattern.attend``."""
        dropout = self.options.dropout if self.training else 0.0
        return self.pattern().attend(query, key, value, key_valid, dropout=dropout, seeds=self.draws_by(query.device))

    attend_tiled = attend

    def attend_flex(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """PyTorch's FlexAttention over the same pairs."""
        return self.pattern().attend_flex(query, key, value, key_valid, self.draws_by(query.device))
