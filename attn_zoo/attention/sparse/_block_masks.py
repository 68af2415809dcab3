"""Block-sparse patterns: windows of blocks, global blocks and random blocks, as in BigBird."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attn_zoo.attention.sparse._pairs import PairwiseAttention
from attn_zoo.contract import FLOAT, Cost, Geometry, OptionsT, softmax_over_valid
from attn_zoo.kernels.cpu._chunks import into_chunks
from attn_zoo.kernels.cpu.block_sparse import attend_tables, table_flops
from attn_zoo.kernels.flex import MaskMod
from attn_zoo.shapes import Keys, KeyValid, Queries, real_positions

SPREAD, MIX = 0x1E3779B97F4A7C15, (0x3F58476D1CE4E5B9, 0x14D049BB133111EB)
"""Odd constants of the hash ``mixed``, as in splitmix64."""


class BlockTable(NamedTuple):
    """Table of the blocks of keys that a block of queries sees, for several blocks of queries."""

    queries: Int[Tensor, "rows"]
    """Numbers of the blocks of queries."""
    keys: Int[Tensor, "#heads rows width"]
    """Numbers of the blocks of keys, one row per block of queries. -1 marks an absent block."""


def mixed(numbers: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Return a pseudo-random non-negative integer for each integer in ``numbers``. Results are the same on every device."""
    for factor in MIX:
        numbers = (numbers ^ ((numbers >> 31) & 0x1FFFFFFFF)) * factor
    return (numbers >> 20) & 0xFFFFFFFFF


@dataclass(frozen=True, slots=True)
class Pattern:
    """Pattern that determines which blocks each block sees: a window of blocks, blocks at both ends of the sequence, and random
    blocks. These fields are numbers of blocks: ``window`` on each side, ``first`` at the start, ``last`` at the end. ``random`` is
    the number of random blocks.

    The blocks at the start and at the end are global: they also see all blocks. If causal, a position sees no later positions,
    ``last`` is 0, and random draws do not depend on the length.
    """

    block: int
    window: int
    first: int = 0
    last: int = 0
    random: int = 0
    causal: bool = False

    def block_pairs(self, n: int) -> int:
        """Return the number of pairs of blocks that a head compares. Pairs with absent blocks (-1 in a ``BlockTable``) are
        included.
        """
        blocks, ends = math.ceil(n / self.block), self.first + self.last
        middle = blocks - ends
        if middle <= 0:
            return blocks * blocks
        width = ends + self._near(middle) + min(self.random, middle)
        return middle * width + ends * (ends if self.causal else blocks)

    def _near(self, middle: int) -> int:
        return min((1 if self.causal else 2) * self.window + 1, middle)

    def tables(self, n: int, seeds: Int[Tensor, "heads"]) -> list[BlockTable]:
        """Return the tables of visible blocks at length ``n``. Ordinary and global blocks have separate tables. ``seeds`` holds one
        seed per head.
        """
        blocks = -(-n // self.block)
        every, end = torch.arange(blocks, device=seeds.device), blocks - self.last
        if end <= self.first:
            return [BlockTable(every, every.repeat(1, blocks, 1))]
        rows = torch.arange(self.first, end, device=seeds.device)
        nearest = rows[:, None] + torch.arange(self._near(len(rows)), device=seeds.device) - self.window
        if self._near(len(rows)) == len(rows):  # the window may exceed the number of blocks
            nearest = rows.expand(len(rows), -1)
        off = ((nearest - rows[:, None]).abs() > self.window) | (nearest < self.first) | (nearest >= end)
        ends = torch.cat([every[: self.first], every[end:]])
        keys = torch.cat([ends.expand(len(rows), -1), nearest.masked_fill(off, -1)], dim=1)[None]
        if self.random:
            keys = torch.cat([keys.expand(len(seeds), -1, -1), self.draw(rows, end, seeds)], dim=2)
        seen = ends if self.causal else every
        return [BlockTable(rows, keys), BlockTable(ends, seen.repeat(1, len(ends), 1))] if len(ends) else [BlockTable(rows, keys)]

    def draw(self, rows: Int[Tensor, "middle"], end: int, seeds: Int[Tensor, "heads"]) -> Int[Tensor, "heads middle random"]:
        """Return distinct random blocks for each block in ``rows``, and -1 if no block is left to draw. They are drawn uniformly
        from the blocks (if causal, earlier blocks) that are neither global nor in the window. ``end`` is the first global block at
        the end.
        """
        low, high = (rows - self.window).clamp(min=self.first), (rows + self.window + 1).clamp(max=end)
        there = low - self.first + (0 if self.causal else end - high)
        count = torch.arange(min(self.random, len(rows)), device=rows.device)
        numbers = mixed(seeds[:, None, None] + SPREAD * (rows[:, None] * self.random + count + 1))
        left = there[:, None] - count  # number of blocks not drawn yet
        found: list[Tensor] = []
        for rank in (numbers % left.clamp(min=1)).masked_fill(left <= 0, len(rows)).unbind(dim=-1):
            for earlier in torch.stack(found).sort(dim=0).values if found else ():
                rank = rank + (rank >= earlier)  # ranks count the blocks not drawn yet
            found.append(rank)
        ranks = torch.stack(found, dim=-1)
        chosen = ranks + self.first
        chosen = torch.where(chosen < low[:, None], chosen, chosen + (high - low)[:, None])
        return chosen.masked_fill(ranks >= there[:, None], -1)

    def mask_mod(self, n: int, seeds: Int[Tensor, "heads"]) -> MaskMod:
        """Return a function of (head, query index, key index) that returns True if the query sees the key."""
        blocks = -(-n // self.block)
        end = blocks - self.last
        drawn: tuple[Tensor, ...] = ()
        if self.random and self.first < end:
            rows = torch.arange(self.first, end, device=seeds.device)
            drawn = F.pad(self.draw(rows, end, seeds), (0, 0, self.first, self.last), value=-1).unbind(dim=2)

        def seen(head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            i, j = query // self.block, key // self.block
            found = ((i - j).abs() <= self.window) | (i < self.first) | (j < self.first) | (i >= end) | (j >= end)
            for draw in drawn:
                found = found | (draw[head, i] == j)
            return found & (key <= query) if self.causal else found

        return seen

    def cost(self, geometry: Geometry) -> Cost:
        """Return the cost, with the FLOPs of attention from each block to all blocks that it sees. Absent blocks (-1 in a
        ``BlockTable``) are included.

        The state holds keys and values of the window and the global blocks or, with random blocks, of the whole past.
        """
        n = geometry.keys
        flops, backward = table_flops(geometry.heads, self.block, geometry.head_dim, self.block_pairs(n))
        held = n if self.random else min(n, (self.first + self.window + 1) * self.block)
        state = FLOAT * held * geometry.cached_width() if geometry.causal else None
        return Cost(flops=flops, parameters=0, backward_flops=backward, state_bytes=state)


def _gather(
    blocks: Float[Tensor, "batch heads blocks block head_dim"], seen: Int[Tensor, "#heads rows width"]
) -> Float[Tensor, "batch heads rows width_block head_dim"]:
    """Gather the blocks of each row, and concatenate them."""
    heads, count = blocks.shape[1:3]
    numbers = seen + count * torch.arange(heads, device=seen.device)[:, None, None]
    return blocks.flatten(1, 2).index_select(1, numbers.flatten()).unflatten(1, numbers.shape).flatten(3, 4)


class BlockPatternAttention(PairwiseAttention[OptionsT]):
    """Softmax attention from each query to all blocks that its block sees. Subclasses define ``layout``, which returns the pattern
    of blocks.
    """

    saturates = (("block", "is at least the number of tokens ({n}), so every token sees all tokens"),)
    layout: Callable[[Geometry, Any], Pattern]
    """Function that returns the pattern for a geometry and options."""

    def pattern(self) -> Pattern:
        """Return the pattern of this mechanism."""
        return self.layout(self.geometry, self.options)

    def head_seeds(self, device: torch.device) -> Int[Tensor, "heads"]:
        """Return one seed per head, which determines the random blocks of the head. Without random blocks, return one seed for all
        heads.
        """
        return torch.zeros(1, dtype=torch.long, device=device)

    def mask_mod(self, n: int, device: torch.device) -> MaskMod:
        """Return a function of (head, query index, key index) that returns True if the query sees the key."""
        return self.pattern().mask_mod(n, self.head_seeds(device))

    def by_head(self) -> bool:
        """Return True if there are random blocks, which differ between heads."""
        return self.pattern().random > 0

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs. Blocks of queries attend to gathered blocks of keys, in one softmax over all visible blocks."""
        pattern, n, device = self.pattern(), query.shape[2], query.device
        valid = real_positions(query, key_valid)
        real = F.pad(valid, (0, -n % pattern.block)).unflatten(1, (-1, pattern.block))
        queries, keys, values = (into_chunks(tokens, pattern.block) for tokens in (query, key, value))
        positions = torch.arange(queries.shape[2] * pattern.block, device=device).unflatten(0, (-1, pattern.block))
        tables = pattern.tables(n, self.head_seeds(device))
        outputs = []
        for rows, seen in tables:
            known = seen.clamp(min=0)
            allowed = (real[:, known] & (seen >= 0)[..., None]).flatten(3)[:, :, :, None]
            if pattern.causal:
                allowed = allowed & (positions[known].flatten(2)[:, :, None] <= positions[rows][..., None])
            scores = queries.index_select(2, rows) @ _gather(keys, known).mT * query.shape[-1] ** -0.5
            weights = F.dropout(softmax_over_valid(scores, allowed, self.sinks), self.options.dropout, self.training)
            outputs.append(weights @ _gather(values, known))
        order = torch.cat([table.queries for table in tables]).argsort()
        return torch.cat(outputs, dim=2).index_select(2, order).flatten(2, 3)[:, :, :n]

    def attend_tiled(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of ``attend``, computed in tiles that fit CPU caches."""
        pattern, seeds = self.pattern(), self.head_seeds(query.device)
        how: dict[str, Any] = {"block": pattern.block, "causal": pattern.causal, "dropout": self.dropout_rate}
        return attend_tables(query, key, value, key_valid, pattern.tables(query.shape[2], seeds), **how)
