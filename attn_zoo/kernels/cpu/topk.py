"""Top-k attention in blocks of queries. It saves the k weights and their indices for the backward pass, but no scores."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attn_zoo.kernels.cpu._tiling import score_blocks
from attn_zoo.kernels.derivatives import OnceDifferentiable
from attn_zoo.precision import without_autocast
from attn_zoo.shapes import Keys, KeyValid, Queries


def topk_attention(query: Queries, key: Keys, value: Keys, key_valid: KeyValid, kept: int, *, causal: bool) -> Queries:
    """Return the outputs of softmax attention over the highest scores of each query (``kept`` in number), computed head by head.

    There are no second derivatives.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    valid = None if key_valid is None else key_valid.repeat_interleave(query.shape[1], dim=0)
    with without_autocast(query.device):
        flat = (t.to(dtype).flatten(0, 1) for t in (query, key, value))
        out, _, _ = _InBlocks.run(*flat, valid, min(kept, key.shape[2]), causal)
    return out.unflatten(0, query.shape[:2]).to(query.dtype)


class _InBlocks(OnceDifferentiable):
    """Autograd function of attention over (batch · heads, length, head_dim). It saves the k weights and their indices."""

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None, kept: int, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, lowest = torch.empty_like(query), torch.finfo(query.dtype).min
        weights = query.new_empty(*query.shape[:2], kept)
        chosen = query.new_empty(weights.shape, dtype=torch.long)
        scaled = key * key.shape[-1] ** -0.5
        for heads, rows, _ in score_blocks(query, key, causal=False):
            scores = query[heads, rows] @ scaled[heads].mT
            if valid is not None:
                scores.masked_fill_(~valid[heads, None], lowest)
            if causal:
                at = torch.arange(key.shape[1], device=key.device)
                scores.masked_fill_(at > at[rows, None], lowest)
            top, where = scores.topk(kept, dim=-1)
            seen = top > lowest
            found = top.softmax(dim=-1).masked_fill_(~seen, 0)
            weights[heads, rows], chosen[heads, rows] = found, where
            out[heads, rows] = scores.zero_().scatter_(-1, where, found) @ value[heads]
        return out, weights, chosen

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        query, key, value, *_ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(query, key, value, *output[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *others: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, chosen = ctx.saved_tensors
        scale = key.shape[-1] ** -0.5
        grad_query, grad_key, grad_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for heads, rows, _ in score_blocks(query, key, causal=False):
            grad_rows, found, where = gradient[heads, rows], weights[heads, rows], chosen[heads, rows]
            spread = grad_rows @ value[heads].mT
            grad_found = spread.gather(-1, where)
            grad_scores = found * (grad_found - (found * grad_found).sum(dim=-1, keepdim=True))
            grad_value[heads].baddbmm_(spread.zero_().scatter_(-1, where, found).mT, grad_rows)
            spread.scatter_(-1, where, grad_scores * scale)  # at the same indices
            grad_query[heads, rows] = spread @ key[heads]
            grad_key[heads].baddbmm_(spread.mT, query[heads, rows])
        return grad_query, grad_key, grad_value, None, None, None
