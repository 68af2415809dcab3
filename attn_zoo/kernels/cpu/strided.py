"""Strided attention. The sequence is written into a grid with l positions per row. A position sees its column of the grid, and
the keys at most l positions away.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.contract.untraced import untraced
from attn_zoo.kernels.cpu._softmax import TILE, drop_, masked_softmax_, softmax_backward_
from attn_zoo.kernels.cpu.block_sparse import cut
from attn_zoo.kernels.derivatives import OnceDifferentiable
from attn_zoo.precision import autocast_dtype, without_autocast
from attn_zoo.shapes import Keys, KeyValid, Queries, real_positions


@untraced
def attend_grid(
    query: Queries, key: Keys, value: Keys, key_valid: KeyValid, *, stride: int, causal: bool, dropout: float
) -> Queries:
    """Return the outputs of softmax attention from each query to the valid keys at most ``stride`` positions away, and to the valid
    keys in its column of a grid. Each row of the grid holds ``stride`` consecutive positions. If a query sees no valid key, its
    output is zero.
    """
    (batch, heads, n, _), dtype = query.shape, autocast_dtype(query)
    valid = real_positions(query, key_valid)
    valid = F.pad(valid, (0, -n % stride)).unflatten(1, (-1, stride))[:, None].expand(-1, heads, -1, -1).flatten(0, 1)
    with without_autocast(query.device):
        out: Tensor = _Grid.run(*(cut(tokens.to(dtype), stride) for tokens in (query, key, value)), valid, causal, dropout)
    return out.flatten(1, 2)[:, :n].unflatten(0, (batch, heads))


class _Grid(OnceDifferentiable):
    """Autograd function over (sequences, rows, l, head_dim), some rows at a time. It saves the inputs and the dropout masks."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, valid: Tensor, causal: bool, dropout: float) -> Tensor:
        out, masks = torch.empty_like(query, memory_format=torch.contiguous_format), list[Tensor]()
        for part, first, last in _parts(query):
            weights = drop_(_weights(query[part, first:last], key[part], valid[part], first, causal), dropout, masks)
            out[part, first:last] = _sums(weights, value[part], first, causal)
        ctx.save_for_backward(query, key, value, valid, *masks)
        ctx.causal = causal
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, valid, *masks = ctx.saved_tensors
        precise, scale = torch.promote_types(query.dtype, torch.float32), query.shape[-1] ** -0.5
        grad_query = torch.empty_like(query, memory_format=torch.contiguous_format)
        grad_key, grad_value = (torch.zeros(key.shape, dtype=precise, device=key.device) for _ in range(2))
        for at, (part, first, last) in enumerate(_parts(query)):
            own, grad_rows = query[part, first:last], gradient[part, first:last]
            weights = _weights(own, key[part], valid[part], first, ctx.causal)
            mask = masks[at] if masks else None
            _add_sums(grad_value[part], weights if mask is None else weights * mask, grad_rows, first, ctx.causal)
            grad_scores = softmax_backward_(weights, _scores(grad_rows, value[part], first, ctx.causal), mask)
            grad_query[part, first:last] = _sums(grad_scores, key[part], first, ctx.causal) * scale
            _add_sums(grad_key[part], grad_scores, own * scale, first, ctx.causal)
        return grad_query, grad_key.to(key.dtype), grad_value.to(key.dtype), None, None, None


def _weights(
    query: Tensor, key: Tensor, valid: Bool[Tensor, "part rows stride"], first: int, causal: bool
) -> Float[Tensor, "part some stride seen"]:
    """Return the softmax weights over the adjacent rows and the column of each position, from row ``first`` on."""
    (_, some, stride, d), device = query.shape, query.device
    distance = (
        torch.arange(-stride, (len(_beside(causal)) - 1) * stride, device=device) - torch.arange(stride, device=device)[:, None]
    )
    near = (distance >= -stride) & (distance <= (0 if causal else stride))
    beside = near & _near_rows(valid[..., None], first, some, causal)[:, :, None, :, 0]
    away = torch.arange(key.shape[1], device=device) - torch.arange(first, first + some, device=device)[:, None]
    far = (away < -1) if causal else (away.abs() > 1)  # adjacent rows of the column are in the window
    column = far[:, None] & valid.mT[:, None]
    return masked_softmax_(_scores(query * d**-0.5, key, first, causal), ~torch.cat([beside, column], dim=-1))


def _parts(query: Tensor) -> Iterator[tuple[slice, int, int]]:
    """Return the sequences, first row and end row of each step: about 4 · ``TILE`` scores, and enough rows for an efficient
    product.
    """
    sequences, rows, stride, _ = query.shape
    scores = stride * (3 * stride + rows)
    some = min(rows, max(1, 4 * TILE // scores))
    together = max(1, 4 * TILE // (some * scores))
    for at in range(0, sequences, together):
        for first in range(0, rows, some):
            yield slice(at, at + together), first, min(rows, first + some)


def _beside(causal: bool) -> tuple[int, ...]:
    """Return the offsets of the rows that a window reaches."""
    return (-1, 0) if causal else (-1, 0, 1)


def _near_rows(grid: Tensor, first: int, some: int, causal: bool) -> Tensor:
    """Concatenate the adjacent rows of each of some rows. Beyond the ends there are zeros."""
    filled = F.pad(grid, (0, 0, 0, 0, 1, 1))
    return torch.cat([filled[:, first + 1 + step : first + 1 + step + some] for step in _beside(causal)], dim=2)


def _scores(query: Tensor, key: Tensor, first: int, causal: bool) -> Float[Tensor, "part some stride seen"]:
    """Return the scores with the adjacent rows, then those with the column of each position."""
    near = query @ _near_rows(key, first, query.shape[1], causal).mT
    column = query.transpose(1, 2) @ key.permute(0, 2, 3, 1)
    return torch.cat([near, column.transpose(1, 2)], dim=-1)


def _sums(weights: Tensor, value: Tensor, first: int, causal: bool) -> Float[Tensor, "part some stride head_dim"]:
    """Return the weighted sums of the values, in the order of the columns of ``_scores``."""
    reach = len(_beside(causal)) * weights.shape[2]
    near = weights[..., :reach] @ _near_rows(value, first, weights.shape[1], causal)
    column = weights[..., reach:].transpose(1, 2) @ value.transpose(1, 2)
    return near + column.transpose(1, 2)


def _add_sums(into: Tensor, weights: Tensor, grad_rows: Tensor, first: int, causal: bool) -> None:
    """Add to each key the weighted sum over the queries that see it."""
    some, stride, rows = grad_rows.shape[1], grad_rows.shape[2], into.shape[1]
    reach = len(_beside(causal)) * stride
    near = weights[..., :reach].mT @ grad_rows
    for step, share in zip(_beside(causal), near.split(stride, dim=2), strict=True):
        start, end = max(0, first + step), min(rows, first + step + some)
        into[:, start:end] += share[:, start - first - step : end - first - step]
    into += (weights[..., reach:].permute(0, 2, 3, 1) @ grad_rows.transpose(1, 2)).transpose(1, 2)
