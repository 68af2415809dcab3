"""Entmax attention: Y = α-entmax(Q Kᵀ / √d) V, whose weights are exactly zero for keys that matter little."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from attn_zoo.attention._kept import FLOAT
from attn_zoo.attention.dense._normalisers import check_alpha, normalise_, scores_gradient_, temper, weights_and_slopes_
from attn_zoo.contract import Attention, Capabilities, Cost, Geometry
from attn_zoo.kernels.cpu._tiling import CHEAP_BYTES, exported
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention

BLOCK = CHEAP_BYTES // 4 // FLOAT
"""Scores computed at once. Some four temporaries of that size stand beside each other."""


@dataclass
class Options:
    """Options of entmax attention."""

    alpha: float = 1.5
    """α: 1 is softmax, 2 is sparsemax, in between the sparser the larger. 1.5 and 2 are fastest."""

    def __post_init__(self) -> None:
        check_alpha("entmax", self.alpha)


def spans(queries: int, keys: int, causal: bool) -> Iterator[tuple[int, int, int]]:
    """First query of each block, the one after its last, and how many keys the block may see."""
    rows = max(1, BLOCK // keys)
    for start in range(0, queries, rows):
        end = min(start + rows, queries)
        yield start, end, end if causal else keys


def cost(geometry: Geometry, options: Options) -> Cost:
    """Q Kᵀ and P V; a causal block of queries leaves out the keys after it. Backward, Q Kᵀ is computed once more.

    Kept: two numbers a query. State: keys and values, the KV cache.
    """
    pairs = sum((end - start) * seen for start, end, seen in spans(geometry.queries, geometry.keys, geometry.causal))
    product = 2 * pairs * geometry.inner_dim
    return Cost(
        flops=2 * product,
        parameters=0,
        backward_flops=5 * product,
        activation_bytes={"eager": 2 * FLOAT * geometry.heads * geometry.queries},
        state_bytes=2 * FLOAT * geometry.keys * geometry.inner_dim if geometry.causal else None,
    )


@register_attention(
    "entmax",
    title="Entmax (sparse)",
    paper="Peters et al. 2019, arXiv:1905.05702",
    equation="the definition of α-entmax, in place of the softmax",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=True),
    time="n^2 d",
    memory="n d",
    cost=cost,
    implementations=("eager", "tiled"),
    softmax_limit=lambda geometry: Entmax(geometry, Options(alpha=1.0)),
    variants={"sparsemax": {"alpha": 2.0}, "between": {"alpha": 1.25}},
)
class Entmax(Attention):
    """Y = α-entmax(Q Kᵀ / √d) V over all keys: quadratic in time, with weights that may be zero.

    Papers: Peters et al. 2019 for the normaliser; Martins and Astudillo 2016 (arXiv:1602.02068) for α = 2; Correia et al. 2019
        (arXiv:1909.00015) for its use in multi-head attention, whose α is learned for each head and here is one constant.
    Symbols: α → alpha, τ → threshold.
    Differs: the threshold is found by Newton's steps instead of sorting (α = 1.5) or bisection. Weights are never stored but
        computed anew for the gradient, which can be taken once. Computed in float32 at least. A query without a
        valid key in its reach yields zeros.
    """

    options: Options

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
            out, _ = _InBlocks.apply(*flat, valid, self.options.alpha, self.geometry.causal)
        return out.unflatten(0, query.shape[:2]).to(query.dtype)

    attend_tiled = attend


class _InBlocks(torch.autograd.Function):
    """Attention of (heads of all examples, length, head_dim) that keeps two numbers a query beside its inputs."""

    @staticmethod
    def forward(
        query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None, alpha: float, causal: bool
    ) -> tuple[Tensor, Tensor]:
        key = key * (temper(alpha) * key.shape[-1] ** -0.5)
        out, marks = torch.empty_like(query), query.new_empty(*query.shape[:2], 2)
        for heads, rows, seen in _blocks(query, key, causal):
            scores = _scores(query[heads, rows], key[heads, seen], None if valid is None else valid[heads, seen], rows, causal)
            weights, top, tau = normalise_(scores, alpha)
            marks[heads, rows] = torch.cat([top, tau], dim=-1)
            out[heads, rows] = weights @ value[heads, seen]
        return out, marks

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.alpha, ctx.causal = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, valid, marks = ctx.saved_tensors
        alpha, scale = ctx.alpha, key.shape[-1] ** -0.5
        tempered = key * (temper(alpha) * scale)
        grad_query, grad_key, grad_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for heads, rows, seen in _blocks(query, key, ctx.causal):
            mask = None if valid is None else valid[heads, seen]
            own, moved = query[heads, rows], gradient[heads, rows]
            scores = _scores(own, tempered[heads, seen], mask, rows, ctx.causal)
            top, tau = marks[heads, rows].split(1, dim=-1)
            weights, u = weights_and_slopes_(scores, top, tau, alpha)
            grad_value[heads, seen].baddbmm_(weights.mT, moved)
            grad_scores = scores_gradient_(moved @ value[heads, seen].mT, u)
            grad_query[heads, rows] = grad_scores @ key[heads, seen]
            grad_key[heads, seen].baddbmm_(grad_scores.mT, own)
        return grad_query.mul_(scale), grad_key.mul_(scale), grad_value, None, None, None


def _blocks(query: Tensor, key: Tensor, causal: bool) -> Iterator[tuple[slice, slice, slice]]:
    """Heads, queries and keys of each block; short ones hold several heads."""
    (count, queries, _), keys = query.shape, key.shape[1]
    for start, end, seen in spans(queries, keys, causal):
        if exported():
            yield slice(None), slice(start, end), slice(0, seen)
            continue
        together = max(1, BLOCK // ((end - start) * seen))
        for first in range(0, count, together):
            yield slice(first, first + together), slice(start, end), slice(0, seen)


def _scores(query: Tensor, key: Tensor, valid: Tensor | None, rows: slice, causal: bool) -> Float[Tensor, "heads rows seen"]:
    """Scores of a block, -inf for what is not seen."""
    scores = query @ key.mT
    if valid is not None:
        scores = scores.masked_fill_(~valid[:, None], -torch.inf)
    if causal:
        later = torch.ones(query.shape[1], query.shape[1], dtype=torch.bool, device=query.device).triu(1)
        scores[..., rows.start :].masked_fill_(later, -torch.inf)
    return scores
