"""Block-sparse attention in tiles. Blocks of keys are gathered, and the backward pass recomputes weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attn_zoo.contract.untraced import untraced
from attn_zoo.kernels.cpu._chunks import into_chunks
from attn_zoo.kernels.cpu._softmax import TILE, drop_, masked_softmax_, softmax_backward_
from attn_zoo.kernels.derivatives import OnceDifferentiable
from attn_zoo.precision import autocast_dtype, without_autocast
from attn_zoo.shapes import Keys, KeyValid, Queries, real_positions

Table = tuple[Int[Tensor, "rows"], Int[Tensor, "#heads rows width"]]
"""Two tensors. The first holds the numbers of some blocks of queries. The second has a row for each of them: the numbers of the
blocks of keys that it sees, each once. An entry of -1 stands for no block.
"""


def attend_tables(
    query: Queries,
    key: Keys,
    value: Keys,
    key_valid: KeyValid,
    tables: Sequence[Table],
    *,
    block: int,
    causal: bool,
    dropout: float,
) -> Queries:
    """Return the outputs of softmax attention from each query to the valid keys of all blocks that its block sees. The tables
    state which blocks of keys each block of queries sees. Each block of queries must be in exactly one table.
    """
    batch, heads, n, _ = query.shape
    valid = real_positions(query, key_valid)
    valid = F.pad(valid, (0, -n % block))
    query, key, value = (cut(tokens, block) for tokens in (query, key, value))
    positions = torch.arange(valid.shape[1], device=query.device) if causal else None
    out = _attend_blocks(query, key, value, valid, tables, dropout=dropout, positions=positions)
    return out.flatten(1, 2)[:, :n].unflatten(0, (batch, heads))


def attend_summaries(
    query: Queries, key: Keys, value: Keys, key_valid: KeyValid, *, block: int, summary: int, causal: bool, dropout: float
) -> Queries:
    """Return the outputs of softmax attention from each query to its own block and to the last keys of every block (``summary`` per
    block). No key counts twice.
    """
    batch, heads, n, _ = query.shape
    blocks, device = math.ceil(n / block), query.device
    behind = summary_blocks(n, block, summary)
    fill = behind * block - blocks * summary
    positions = torch.arange(blocks * block, device=device)
    valid = real_positions(query, key_valid)
    valid = F.pad(valid, (0, blocks * block - n)).unflatten(1, (blocks, block))
    last = block - summary
    # Summaries are copied into additional blocks at the end, and hidden in the blocks from which they come.
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
    out = _attend_blocks(
        cut(query, block),
        with_summaries(key),
        with_summaries(value),
        valid,
        [(own, seen[None])],
        dropout=dropout,
        positions=positions if causal else None,
    )
    return out.flatten(1, 2)[:, :n].unflatten(0, (batch, heads))


def cut(tokens: Float[Tensor, "batch heads n head_dim"], block: int) -> Float[Tensor, "batch_heads blocks block head_dim"]:
    """Return the tokens split into blocks, the last one filled up with zeros. Batch and heads become one axis."""
    return into_chunks(tokens, block).flatten(0, 1)


def summary_blocks(n: int, block: int, summary: int) -> int:
    """Return how many new blocks are needed to hold the last ``summary`` positions of all blocks together."""
    return math.ceil(math.ceil(n / block) * summary / block)


def table_flops(heads: int, block: int, head_dim: int, block_pairs: int) -> tuple[int, int]:
    """Return the FLOPs of attention between blocks for one example: those of the forward pass and those of the backward pass,
    which also recomputes the scores.

    ``block_pairs`` is the number of pairs (block of queries, block of keys that it sees).
    """
    flops = 4 * heads * block * block * head_dim * block_pairs
    return flops, 5 * flops // 2


@untraced
def _attend_blocks(
    query: Float[Tensor, "batch_heads blocks block head_dim"],
    key: Float[Tensor, "batch_heads key_blocks block head_dim"],
    value: Float[Tensor, "batch_heads key_blocks block head_dim"],
    valid: Bool[Tensor, "batch key_slots"],
    tables: Sequence[Table],
    *,
    dropout: float,
    positions: Int[Tensor, "key_slots"] | None = None,
) -> Float[Tensor, "batch_heads blocks block head_dim"]:
    """Compute softmax attention of each query to the valid keys of the blocks that its block sees. Without such keys, outputs are
    zeros.

    Args:
        positions: positions of the keys, for the causal form; block i of queries starts at position i · block.
    """
    dtype = autocast_dtype(query)
    with without_autocast(query.device):
        # Contiguous, because index_select would otherwise copy the whole tensor each time.
        blocks = (t.to(dtype).contiguous() for t in (query, key, value))
        out: Tensor = _Gathered.run(*blocks, valid, positions, dropout, *(t for table in tables for t in table))
    return out


class _Gathered(OnceDifferentiable):
    """Autograd function of ``_attend_blocks``, in tiles of some blocks of queries. It saves the inputs and the dropout masks."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        valid: Tensor,
        positions: Tensor | None,
        dropout: float,
        *tables: Tensor,
    ) -> Tensor:
        out, masks = torch.empty_like(query, memory_format=torch.contiguous_format), list[Tensor]()
        flat = out.flatten(0, 1)
        for tile in _tiles(query, key, valid, positions, tables):
            weights = drop_(tile.weights(tile.own(query), tile.gather(key)), dropout, masks)
            flat[tile.queries] = weights @ tile.gather(value)
        ctx.save_for_backward(query, key, value, valid, positions, *tables, *masks)
        ctx.tables = len(tables)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, valid, positions, *rest = ctx.saved_tensors
        tables, masks = rest[: ctx.tables], rest[ctx.tables :]
        precise = torch.promote_types(query.dtype, torch.float32)  # gradients of many tiles are added for one key
        grad_query = torch.empty_like(query, memory_format=torch.contiguous_format).flatten(0, 1)
        grad_key, grad_value = (torch.zeros(key.shape, dtype=precise, device=key.device).flatten(0, 1).flatten(1) for _ in range(2))
        gradient, scale = gradient.flatten(0, 1).contiguous(), query.shape[-1] ** -0.5
        for at, tile in enumerate(_tiles(query, key, valid, positions, tables)):
            own, keys, grad_rows = tile.own(query), tile.gather(key), gradient[tile.queries]
            weights = tile.weights(own, keys)
            mask = masks[at] if masks else None
            grad_value.index_add_(0, *tile.scatter((weights if mask is None else weights * mask).mT @ grad_rows, precise))
            grad_scores = softmax_backward_(weights, grad_rows @ tile.gather(value).mT, mask)
            grad_query[tile.queries] = (grad_scores @ keys).mul_(scale)
            grad_key.index_add_(0, *tile.scatter(grad_scores.mT @ own, precise))
        grads = (grad_query.view(query.shape), grad_key.view(key.shape).to(key.dtype), grad_value.view(key.shape).to(key.dtype))
        return *grads, None, None, None, *(None for _ in tables)


@dataclass(frozen=True, slots=True)
class _Tile:
    """Indices of some blocks of queries and of the blocks of keys that they see, over all heads of all examples."""

    queries: Int[Tensor, "items"]
    keys: Int[Tensor, "items_width"]
    hidden: Bool[Tensor, "items #block width_block"]

    def gather(self, blocks: Tensor) -> Float[Tensor, "items width_block head_dim"]:
        """Gather the visible blocks, and concatenate them."""
        return blocks.flatten(0, 1).index_select(0, self.keys).view(len(self.queries), -1, blocks.shape[-1])

    def own(self, query: Tensor) -> Float[Tensor, "items block head_dim"]:
        """Select and scale the queries of the tile."""
        return query.flatten(0, 1).index_select(0, self.queries).mul_(query.shape[-1] ** -0.5)

    def weights(self, own: Tensor, keys: Tensor) -> Float[Tensor, "items block width_block"]:
        """Return the softmax weights over the keys that are not hidden."""
        return masked_softmax_(own @ keys.mT, self.hidden)

    def scatter(self, gathered: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return indices and gradients of gathered blocks as arguments of ``index_add_``."""
        return self.keys, gathered.reshape(len(self.keys), -1).to(dtype)


def _tiles(query: Tensor, key: Tensor, valid: Tensor, positions: Tensor | None, tables: Sequence[Tensor]) -> Iterator[_Tile]:
    """Split all tables into tiles of about ``TILE`` scores."""
    (every, blocks, block, _), key_blocks, device = query.shape, key.shape[1], query.device
    examples, steps = valid.shape[0], torch.arange(block, device=device)
    valid = valid.reshape(examples * key_blocks, block)  # a copy if the mask was transposed, because padding by 0 keeps its strides
    heads = every // examples
    for rows, table in zip(tables[::2], tables[1::2], strict=True):
        by_head, looking, width = table.shape
        together = max(1, TILE // (block * block * width))
        for start in range(0, every * looking, together):
            items = torch.arange(start, min(start + together, every * looking), device=device)
            head, row = items // looking, items % looking
            found = table[head % heads if by_head > 1 else 0, row]
            there, known = found >= 0, found.clamp(min=0)
            example = head // heads * key_blocks
            hidden = ~(valid[example[:, None] + known] & there[..., None]).flatten(1)[:, None]
            if positions is not None:
                now = (rows[row] * block)[:, None] + steps
                hidden = hidden | (positions.view(key_blocks, block)[known].flatten(1)[:, None] > now[..., None])
            yield _Tile(head * blocks + rows[row], (head[:, None] * key_blocks + known).flatten(), hidden)
