"""Landmarks: means of consecutive valid tokens, a few for a whole sequence."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attn_zoo.attention.content._hashing import take


def segment_means(tokens: Float[Tensor, "batch heads n d"], segments: int) -> Float[Tensor, "batch heads segments d"]:
    """Means of ``segments`` consecutive parts, at most n; the first n mod segments of them hold one token more."""
    each, longer = divmod(tokens.shape[2], segments)
    cut = longer * (each + 1)
    parts = [tokens[:, :, :cut].unflatten(2, (-1, each + 1)).mean(dim=3)] if longer else []
    return torch.cat([*parts, tokens[:, :, cut:].unflatten(2, (-1, each)).mean(dim=3)], dim=2)


def with_segment_means(
    tokens: Float[Tensor, "batch heads n d"], segments: int
) -> tuple[Float[Tensor, "batch heads n d"], Float[Tensor, "batch heads segments d"]]:
    """The tokens, to go on with, and their ``segment_means``: both gradients are joined in one pass, where autograd takes three."""
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
    """The same cut of the valid tokens only, each example by its own number of them: as if padding were not there.

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
        """Means of the segments; zeros for an empty one."""
        slots = take(tokens, self.position[:, None].expand(-1, tokens.shape[1], -1))
        share = self.size.clamp(min=1).to(tokens.dtype).reciprocal()[:, None, :, None, None]
        return (slots.unflatten(2, (self.size.shape[1], -1)) * share).sum(dim=3)
