"""Landmarks (means of consecutive tokens), and softmax attention with few keys or few queries, in blocks of the long side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from attn_zoo.kernels.cpu._tiling import exported, like_tokens
from attn_zoo.shapes import Keys, KeyValid, Queries

CACHED_BYTES = 2**19
"""Bytes of the scores of one block. A few temporaries of that size fit the second-level cache together."""


def few_keys(
    query: Float[Tensor, "batch heads n d"],
    key: Float[Tensor, "batch heads m d"],
    value: Float[Tensor, "batch heads m d"],
    valid: Bool[Tensor, "batch m"] | None,
) -> Float[Tensor, "batch heads n d"]:
    """Compute softmax(Q Kᵀ) V over few keys; finite but arbitrary where none is valid. Weights are saved for the backward pass."""
    out: Tensor = _FewKeys.apply(query, key, value, valid, torch.is_grad_enabled())
    return out


def few_queries(
    query: Float[Tensor, "batch heads m d"], key: Keys, value: Keys, valid: KeyValid
) -> Float[Tensor, "batch heads m d"]:
    """Compute softmax(Q Kᵀ) V with few queries over many keys."""
    out: Tensor = _FewQueries.apply(query, key, value, valid)
    return out


class _FewKeys(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None, keep: bool) -> Tensor:
        out, kept = like_tokens(query), []
        for some, rows in _blocks(query, key.shape[2]):
            scores = query[some, :, rows] @ key[some].mT
            if valid is not None:
                scores.masked_fill_(~valid[some, None, None], torch.finfo(scores.dtype).min)
            weights = scores.softmax(dim=-1)
            out[some, :, rows] = weights @ value[some]
            if keep:
                kept.append(weights)
        ctx.save_for_backward(query, key, value, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *kept = ctx.saved_tensors
        grad_query, grad_key, grad_value = like_tokens(query), torch.zeros_like(key), torch.zeros_like(value)
        for (some, rows), weights in zip(_blocks(query, key.shape[2]), kept, strict=True):
            grad_rows = gradient[some, :, rows]
            grad_value[some] += weights.mT @ grad_rows
            grad_scores = grad_rows @ value[some].mT
            grad_scores.sub_((grad_scores * weights).sum(dim=-1, keepdim=True)).mul_(weights)
            grad_query[some, :, rows] = grad_scores @ key[some]
            grad_key[some] += grad_scores.mT @ query[some, :, rows]
        return grad_query, grad_key, grad_value, None, None


class _FewQueries(torch.autograd.Function):
    """Autograd function of ``few_queries``; scores have a row for each key, so that a block of keys is a block of rows."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None) -> Tensor:
        out, mass = torch.zeros_like(query), query.new_zeros(*query.shape[:2], 1, query.shape[2])
        top = torch.full_like(mass, torch.finfo(query.dtype).min)
        blocks, kept = list(_blocks(key, query.shape[2])), []
        for some, rows in blocks:
            scores = key[some, :, rows] @ query[some].mT
            if valid is not None:
                scores.masked_fill_(~valid[some, None, rows, None], torch.finfo(scores.dtype).min)
            top[some] = torch.maximum(top[some], scores.amax(dim=2, keepdim=True))
            kept.append(scores)
        for (some, rows), powers in zip(blocks, kept, strict=True):
            powers.sub_(top[some]).exp_()
            mass[some] += powers.sum(dim=2, keepdim=True)
            out[some] += powers.mT @ value[some, :, rows]
        out /= mass.mT
        ctx.save_for_backward(query, key, value, out, mass, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, mass, *kept = ctx.saved_tensors
        grad_query, grad_key, grad_value = torch.zeros_like(query), like_tokens(key), like_tokens(value)
        shared = gradient / mass.mT
        mean = (shared * out).sum(dim=-1)[:, :, None]
        for (some, rows), powers in zip(_blocks(key, query.shape[2]), kept, strict=True):
            grad_value[some, :, rows] = powers @ shared[some]
            grad_scores = (value[some, :, rows] @ shared[some].mT).sub_(mean[some]).mul_(powers)
            grad_key[some, :, rows] = grad_scores @ query[some]
            grad_query[some] += grad_scores.mT @ key[some, :, rows]
        return grad_query, grad_key, grad_value, None


def _blocks(long: Tensor, short: int) -> Iterator[tuple[slice, slice]]:
    """Slices of examples and rows of each block; a single block on devices other than a CPU."""
    batch, heads, n, _ = long.shape
    if exported():
        yield slice(None), slice(0, n)
        return
    row_bytes = heads * short * long.element_size()
    rows = min(n, max(1, CACHED_BYTES // row_bytes)) if long.device.type == "cpu" else n
    together = max(1, CACHED_BYTES // (rows * row_bytes)) if long.device.type == "cpu" else batch
    for first in range(0, batch, together):
        for start in range(0, n, rows):
            yield slice(first, first + together), slice(start, start + rows)


def landmarks(
    query: Queries, key: Keys, m: int, valid: KeyValid
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], Bool[Tensor, "batch m"] | None]:
    """Queries and keys, each with its means of m consecutive parts, and mask of the parts that hold a valid token.

    The returned queries and keys replace the given ones, so that their gradients are joined (see ``with_segment_means``).
    """
    if valid is None:
        return with_segment_means(query, m), with_segment_means(key, m), None
    segments = ValidSegments(valid, m)
    return (query, segments.means(query)), (key, segments.means(key)), segments.valid


def segment_means(tokens: Float[Tensor, "batch heads n d"], segments: int) -> Float[Tensor, "batch heads segments d"]:
    """Means of ``segments`` consecutive parts, at most n; the first n mod segments of them hold one token more."""
    each, longer = divmod(tokens.shape[2], segments)
    cut = longer * (each + 1)
    parts = [tokens[:, :, :cut].unflatten(2, (-1, each + 1)).mean(dim=3)] if longer else []
    return torch.cat([*parts, tokens[:, :, cut:].unflatten(2, (-1, each)).mean(dim=3)], dim=2)


def with_segment_means(tokens: Keys, segments: int) -> tuple[Queries, Float[Tensor, "batch heads segments d"]]:
    """Tokens and their ``segment_means``; the returned tokens join both gradients in one pass, where autograd takes three."""
    same, means = _WithMeans.apply(tokens, segments)
    return same, means


class _WithMeans(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, segments: int) -> tuple[Tensor, Tensor]:
        return tokens.view_as(tokens), segment_means(tokens, segments)

    @staticmethod
    def backward(ctx: Any, grad_tokens: Tensor, grad_means: Tensor) -> tuple[Tensor, None]:
        segments = grad_means.shape[2]
        each, longer = divmod(grad_tokens.shape[2], segments)

        def joined(rows: Tensor, means: Tensor, size: int) -> Tensor:
            return (rows.unflatten(2, (-1, size)) + (means / size)[:, :, :, None]).flatten(2, 3)

        if not longer:
            return joined(grad_tokens, grad_means, each), None
        cut = longer * (each + 1)
        head = joined(grad_tokens[:, :, :cut], grad_means[:, :, :longer], each + 1)
        return torch.cat([head, joined(grad_tokens[:, :, cut:], grad_means[:, :, longer:], each)], dim=2), None


class ValidSegments:
    """Segments of the valid tokens alone, each example by its own number of them, as without padding.

    An example with fewer valid tokens than segments has as many segments as tokens; the others are empty.
    """

    def __init__(self, valid: Bool[Tensor, "batch n"], segments: int) -> None:
        n = valid.shape[1]
        count = valid.sum(dim=-1, keepdim=True)
        filled = count.clamp(max=segments)
        each, longer = count // filled.clamp(min=1), count % filled.clamp(min=1)
        segment = torch.arange(segments, device=valid.device)
        self.valid: Bool[Tensor, "batch segments"] = segment < filled
        self.size: Int[Tensor, "batch segments"] = (each + (segment < longer)) * self.valid
        first = segment * each + torch.minimum(segment.expand_as(longer * segment), longer)
        within = torch.arange(-(-n // segments), device=valid.device)
        rank = (first[..., None] + within).masked_fill(within >= self.size[..., None], n).flatten(1)
        in_order = (~valid).int().argsort(dim=-1, stable=True)  # valid positions before padded ones
        behind = in_order.new_full((valid.shape[0], 1), n)
        self.position: Int[Tensor, "batch slots"] = torch.cat([in_order, behind], dim=1).gather(1, rank)

    def means(self, tokens: Float[Tensor, "batch heads n d"]) -> Float[Tensor, "batch heads segments d"]:
        """Means of the segments; zeros for an empty segment."""
        batch, heads, n, d = tokens.shape
        padded = F.pad(tokens, (0, 0, 0, 1)).reshape(batch * heads * (n + 1), d)  # a row of zeros behind the last token
        offset = torch.arange(batch * heads, device=tokens.device).view(batch, heads, 1) * (n + 1)
        slots = padded.index_select(0, (self.position[:, None] + offset).flatten()).view(batch, heads, -1, d)
        share = self.size.clamp(min=1).to(tokens.dtype).reciprocal()[:, None, :, None, None]
        return (slots.unflatten(2, (self.size.shape[1], -1)) * share).sum(dim=3)
