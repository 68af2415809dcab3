"""Attention of blocks of queries to chosen blocks of keys. Blocks are gathered, weights computed anew for the gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from attn_zoo.attention._kept import INDEX, MASK
from attn_zoo.kernels.cpu._softmax import TILE, dropout_mask, masked_softmax_, softmax_backward_
from attn_zoo.kernels.cpu._tiling import untraced
from attn_zoo.precision import autocast_dtype, without_autocast


@dataclass(frozen=True, slots=True)
class BlockTable:
    """Which blocks of keys some blocks of queries look at."""

    queries: Int[Tensor, "looking"]
    """Numbers of the blocks of queries."""
    keys: Int[Tensor, "#heads looking width"]
    """Numbers of the blocks of keys, each once in a row; -1 for none."""


class BlockTableSize(NamedTuple):
    """How much a look takes."""

    queries: int
    """Blocks of queries."""
    width: int
    """Blocks of keys, -1 included."""
    drawn: bool = False
    """Whether each head looks at others."""


@untraced
def attend_blocks(
    query: Float[Tensor, "batch_heads blocks block head_dim"],
    key: Float[Tensor, "batch_heads key_blocks block head_dim"],
    value: Float[Tensor, "batch_heads key_blocks block head_dim"],
    valid: Bool[Tensor, "batch key_slots"],
    looks: Sequence[BlockTable],
    *,
    dropout: float,
    positions: Int[Tensor, "key_slots"] | None = None,
) -> Float[Tensor, "batch_heads blocks block head_dim"]:
    """One softmax for each query over the valid keys of the blocks it looks at; zeros where there is none.

    Args:
        looks: together they name each block of queries once.
        positions: of the keys. Given, a query sees those up to its own position; block i of the queries starts at i · block.
    """
    dtype = autocast_dtype(query)
    tensors = [t for look in looks for t in (look.queries, look.keys)]
    with without_autocast(query.device):
        # Blocks are picked by number, which copies all of what is not contiguous each time.
        blocks = (t.to(dtype).contiguous() for t in (query, key, value))
        out: Tensor = _Gathered.apply(*blocks, valid, positions, dropout, *tensors)
    return out


def gathered_flops(heads: int, block: int, head_dim: int, sizes: Sequence[BlockTableSize]) -> tuple[int, int]:
    """FLOPs of ``attend_blocks`` for one example, forward and backward: there scores anew, and each product's two factors."""
    flops = 4 * heads * block * block * head_dim * sum(size.queries * size.width for size in sizes)
    return flops, 5 * flops // 2


def gathered_bytes(heads: int, sizes: Sequence[BlockTableSize], key_slots: int, *, causal: bool) -> int:
    """Bytes that autograd keeps of ``attend_blocks`` beside queries, keys and values."""
    indices = sum(size.queries * (1 + (heads if size.drawn else 1) * size.width) for size in sizes)
    return INDEX * (indices + causal * key_slots) + MASK * key_slots


class _Gathered(torch.autograd.Function):
    """``attend_blocks`` tile by tile, some blocks of queries each. Kept are the inputs, and under dropout what survives."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        valid: Tensor,
        positions: Tensor | None,
        dropout: float,
        *looks: Tensor,
    ) -> Tensor:
        out, survivors = torch.empty_like(query, memory_format=torch.contiguous_format), []
        flat = out.flatten(0, 1)
        for tile in _tiles(query, key, valid, positions, looks):
            weights = tile.weights(tile.own(query), tile.gather(key))
            if (kept := dropout_mask(weights, dropout)) is not None:
                survivors.append(kept)
                weights = weights * kept
            flat[tile.queries] = weights @ tile.gather(value)
        ctx.save_for_backward(query, key, value, valid, positions, *looks, *survivors)
        ctx.looks = len(looks)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, valid, positions, *rest = ctx.saved_tensors
        looks, survivors = rest[: ctx.looks], rest[ctx.looks :]
        precise = torch.promote_types(query.dtype, torch.float32)  # many tiles add to one key
        grad_query = torch.empty_like(query, memory_format=torch.contiguous_format).flatten(0, 1)
        grad_key, grad_value = (torch.zeros(key.shape, dtype=precise, device=key.device).flatten(0, 1).flatten(1) for _ in range(2))
        gradient, scale = gradient.flatten(0, 1).contiguous(), query.shape[-1] ** -0.5
        for at, tile in enumerate(_tiles(query, key, valid, positions, looks)):
            own, keys, grad_rows = tile.own(query), tile.gather(key), gradient[tile.queries]
            weights = tile.weights(own, keys)
            kept = survivors[at] if survivors else None
            grad_value.index_add_(0, *tile.scatter((weights if kept is None else weights * kept).mT @ grad_rows, precise))
            grad_scores = softmax_backward_(weights, grad_rows @ tile.gather(value).mT, kept)
            grad_query[tile.queries] = (grad_scores @ keys).mul_(scale)
            grad_key.index_add_(0, *tile.scatter(grad_scores.mT @ own, precise))
        grads = (grad_query.view(query.shape), grad_key.view(key.shape).to(key.dtype), grad_value.view(key.shape).to(key.dtype))
        return *grads, None, None, None, *(None for _ in looks)


@dataclass(frozen=True, slots=True)
class _Tile:
    """Some blocks of queries and the blocks of keys that they look at, by their numbers over all heads of all examples."""

    queries: Int[Tensor, "items"]
    keys: Int[Tensor, "items_width"]
    hidden: Bool[Tensor, "items #block width_block"]

    def gather(self, blocks: Tensor) -> Float[Tensor, "items width_block head_dim"]:
        """What is looked at, side by side."""
        return blocks.flatten(0, 1).index_select(0, self.keys).view(len(self.queries), -1, blocks.shape[-1])

    def own(self, query: Tensor) -> Float[Tensor, "items block head_dim"]:
        """Queries, scaled."""
        return query.flatten(0, 1).index_select(0, self.queries).mul_(query.shape[-1] ** -0.5)

    def weights(self, own: Tensor, keys: Tensor) -> Float[Tensor, "items block width_block"]:
        """Softmax over what is not hidden."""
        return masked_softmax_(own @ keys.mT, self.hidden)

    def scatter(self, gathered: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Where what was gathered came from, and its gradient, as ``index_add_`` takes them."""
        return self.keys, gathered.reshape(len(self.keys), -1).to(dtype)


def _tiles(query: Tensor, key: Tensor, valid: Tensor, positions: Tensor | None, looks: Sequence[Tensor]) -> Iterator[_Tile]:
    """Cut all looks into tiles of about ``TILE`` scores."""
    (every, blocks, block, _), key_blocks, device = query.shape, key.shape[1], query.device
    examples, steps = valid.shape[0], torch.arange(block, device=device)
    valid = valid.view(examples * key_blocks, block)
    heads = every // examples
    for rows, table in zip(looks[::2], looks[1::2], strict=True):
        tables, looking, width = table.shape
        together = max(1, TILE // (block * block * width))
        for start in range(0, every * looking, together):
            items = torch.arange(start, min(start + together, every * looking), device=device)
            head, row = items // looking, items % looking
            found = table[head % heads if tables > 1 else 0, row]
            there, known = found >= 0, found.clamp(min=0)
            example = head // heads * key_blocks
            hidden = ~(valid[example[:, None] + known] & there[..., None]).flatten(1)[:, None]
            if positions is not None:
                now = (rows[row] * block)[:, None] + steps
                hidden = hidden | (positions.view(key_blocks, block)[known].flatten(1)[:, None] > now[..., None])
            yield _Tile(head * blocks + rows[row], (head[:, None] * key_blocks + known).flatten(), hidden)
