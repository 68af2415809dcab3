"""Top-k attention: yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ over the k keys of the highest scores of query i."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from attn_zoo.attention._kept import FLOAT, INDEX
from attn_zoo.attention._masks import softmax_over_valid
from attn_zoo.contract import Attention, Capabilities, Cost, Geometry
from attn_zoo.kernels.cpu._tiling import CHEAP_BYTES, exported
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention

BLOCK = CHEAP_BYTES // 4 // FLOAT
"""Scores computed at once. Some four temporaries of that size stand beside each other."""


@dataclass
class Options:
    """Options of top-k attention."""

    kept: int = 8
    """k, the keys a query attends to; all of them where there are no more."""

    def __post_init__(self) -> None:
        if self.kept < 1:
            raise ValueError(f"topk.kept counts keys, so it is at least 1; got {self.kept}")


def cost(geometry: Geometry, options: Options) -> Cost:
    """Q Kᵀ and P V over all pairs, P mostly zeros: every score must be known to find the highest. Choosing is no matrix product.

    Kept: k weights and indices a query. State: keys and values, the KV cache.
    """
    product = 2 * geometry.queries * geometry.keys * geometry.inner_dim
    chosen = geometry.heads * geometry.queries * min(options.kept, geometry.keys)
    return Cost(
        flops=2 * product,
        parameters=0,
        backward_flops=4 * product,
        activation_bytes={"eager": (FLOAT + INDEX) * chosen},
        state_bytes=2 * FLOAT * geometry.keys * geometry.inner_dim if geometry.causal else None,
    )


@register_attention(
    "topk",
    title="Top-k (exact)",
    paper="Gupta et al. 2021, arXiv:2106.06899",
    equation="Section 2, the highest k scores of each query",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=True),
    time="n^2 d",
    memory="n k + n d",
    cost=cost,
    implementations=("eager", "tiled"),
    softmax_limit=lambda geometry: TopK(geometry, Options(kept=geometry.keys)),
    variants={"few": {"kept": 2}, "more": {"kept": 20}},
)
class TopK(Attention):
    """Softmax over the k highest scores of each query: quadratic in time, linear in memory.

    Paper: Gupta et al. 2021, Section 2: top-k scores of a chunk of queries at a time.
    Symbols: k → kept.
    Differs: the kept weights are spread over a block of zeros and multiplied with all values, where the paper gathers k values
        for each query; so the gradients are matrix products too. Between equal scores PyTorch chooses. A query of fewer
        valid keys than k attends to those; one without any yields zeros. The choice is made in float32 at least. The
        gradient can be taken once.
    """

    options: Options

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """As many keys as there are, or a single one."""
        k, n = options.kept, geometry.keys
        if k == 1:
            return ("kept=1 gives one key all the weight: no gradient reaches queries and keys",)
        return (f"kept={k} is no fewer than the {n} keys: none is left out",) if k >= n else ()

    def attend(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys head_dim"],
        key_valid: Bool[Tensor, "batch keys"] | None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Heads of all examples one after the other, in blocks of queries."""
        dtype = torch.promote_types(query.dtype, torch.float32)
        valid = None if key_valid is None else key_valid.repeat_interleave(query.shape[1], dim=0)
        with without_autocast(query.device):
            flat = (t.to(dtype).flatten(0, 1) for t in (query, key, value))
            out, _, _ = _InBlocks.apply(*flat, valid, min(self.options.kept, key.shape[2]), self.geometry.causal)
        return out.unflatten(0, query.shape[:2]).to(query.dtype)

    attend_tiled = attend


class _InBlocks(torch.autograd.Function):
    """Attention of (heads of all examples, length, head_dim) that keeps the chosen weights and where they stand."""

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None, kept: int, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        out, lowest = torch.empty_like(query), torch.finfo(query.dtype).min
        weights = query.new_empty(*query.shape[:2], kept)
        chosen = query.new_empty(weights.shape, dtype=torch.long)
        scaled = key * key.shape[-1] ** -0.5
        for heads, rows in _blocks(query, key):
            scores = query[heads, rows] @ scaled[heads].mT
            if valid is not None:
                scores.masked_fill_(~valid[heads, None], lowest)
            if causal:
                at = torch.arange(key.shape[1], device=key.device)
                scores.masked_fill_(at > at[rows, None], lowest)
            top, where = scores.topk(kept, dim=-1)
            found = softmax_over_valid(top, top > lowest)
            weights[heads, rows], chosen[heads, rows] = found, where
            out[heads, rows] = scores.zero_().scatter_(-1, where, found) @ value[heads]
        return out, weights, chosen

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        query, key, value, *_ = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(query, key, value, *output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, chosen = ctx.saved_tensors
        scale = key.shape[-1] ** -0.5
        grad_query, grad_key, grad_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for heads, rows in _blocks(query, key):
            moved, found, where = gradient[heads, rows], weights[heads, rows], chosen[heads, rows]
            spread = moved @ value[heads].mT
            grad_found = spread.gather(-1, where)
            grad_scores = found * (grad_found - (found * grad_found).sum(dim=-1, keepdim=True))
            grad_value[heads].baddbmm_(spread.zero_().scatter_(-1, where, found).mT, moved)
            spread.scatter_(-1, where, grad_scores * scale)  # in the same places
            grad_query[heads, rows] = spread @ key[heads]
            grad_key[heads].baddbmm_(spread.mT, query[heads, rows])
        return grad_query, grad_key, grad_value, None, None, None


def _blocks(query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice]]:
    """Heads and queries of each block; short ones hold several heads."""
    (count, queries, _), keys = query.shape, key.shape[1]
    if exported():
        yield slice(None), slice(0, queries)
        return
    rows = min(queries, max(1, BLOCK // max(1, keys)))
    together = max(1, BLOCK // max(1, rows * keys))
    for start in range(0, queries, rows):
        for first in range(0, count, together):
            yield slice(first, first + together), slice(start, start + rows)
