"""Longformer: yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ over a window around i and a few global tokens; global tokens see all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.attention._kept import FLOAT, MASK, softmax_bytes
from attn_zoo.attention._masks import check_dropout, softmax_over_valid
from attn_zoo.attention.sparse._flex import FlexAttends, flex_attention_over
from attn_zoo.contract import Capabilities, Cost, Geometry, Stream
from attn_zoo.kernels.cpu.window import band_backward_flops, band_flops, banded_attention, check_window, doubts_of_window
from attn_zoo.registry import register_attention


@dataclass
class Options:
    """Options of Longformer."""

    window: int = 17
    """Keys a position sees, itself included; odd, so that it sees as many on either side. Causal: itself and those before."""
    dilation: int = 1
    """Distance between the keys of a window."""
    global_tokens: int = 1
    """The first so many positions see all and are seen by all, such as a class token."""
    dropout: float = 0.0
    """Share of attention weights set to zero in training."""

    def __post_init__(self) -> None:
        check_window("longformer", self.window)
        if self.dilation < 1:
            raise ValueError(f"longformer.dilation is the distance between keys, so it is at least 1; got {self.dilation}")
        if self.global_tokens < 0:
            raise ValueError(f"longformer.global_tokens counts positions, so it is at least 0; got {self.global_tokens}")
        check_dropout("longformer", self.dropout)


def reach(geometry: Geometry, options: Options, length: int) -> tuple[int, int]:
    """Keys of a dilated sequence of ``length`` that a position sees on its left and on its right."""
    left = options.window - 1 if geometry.causal else options.window // 2
    right = 0 if geometry.causal else left
    return min(left, length - 1), min(right, length - 1)


def cost(geometry: Geometry, options: Options) -> Cost:
    """The band, block by block in each residue class of the dilation, with the global keys; and the global rows.

    Backward, weights of the band are computed anew and those of the global rows are kept, with their scaled queries. Kept for
    a dilated band: its queries, keys and values, and which of them are there. State: keys and values within reach and of
    the global tokens; while these are read, also their global keys and values.
    """
    n, g, dilation = geometry.keys, min(options.global_tokens, geometry.keys), options.dilation
    length, heads, d = math.ceil((n - g) / dilation), geometry.heads, geometry.head_dim
    flops = backward = kept = 0
    if g:
        flops += 4 * g * n * geometry.inner_dim
        backward += 2 * flops
        kept += FLOAT * g * geometry.inner_dim + softmax_bytes(heads * g, n, masks=g * n if geometry.causal else n)
    if n > g:
        left, right = reach(geometry, options, length)
        flops += dilation * band_flops(length, left, right, extra=g) * geometry.inner_dim
        backward += dilation * band_backward_flops(length, left, right, extra=g) * geometry.inner_dim
    if n > g and dilation > 1:
        kept += heads * dilation * length * (3 * FLOAT * d + MASK) + MASK * g
        kept += 2 * FLOAT * heads * dilation * g * d if heads > 1 else 0  # of one head a view does
    held = max(2 * g, min(n, (options.window - 1) * dilation + 1 + g))
    return Cost(
        flops=flops,
        parameters=0,
        backward_flops=backward,
        activation_bytes={"eager": kept},
        state_bytes=2 * FLOAT * held * geometry.inner_dim if geometry.causal else None,
    )


def streams(geometry: Geometry, options: Options) -> tuple[Stream, ...]:
    """Global attention has projections of its own, which start as copies of the ordinary ones."""
    if not options.global_tokens:
        return ()
    return (
        Stream("global_query", of="queries", starts_as="query", first=options.global_tokens),
        Stream("global_key", of="keys", starts_as="key"),
        Stream("global_value", of="keys", starts_as="value"),
    )


def widest(geometry: Geometry) -> Longformer:
    """A window over everything, without global tokens: softmax attention."""
    longest = max(geometry.queries, geometry.keys)
    return Longformer(geometry, Options(window=2 * longest + 1, global_tokens=0))


@register_attention(
    "longformer",
    title="Longformer window",
    paper="Beltagy et al. 2020, arXiv:2004.05150",
    equation="Section 3.1",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
    time="n w d + n g d",
    memory="n w + n g + n d",
    cost=cost,
    streams=streams,
    implementations=("eager", "tiled", "flex"),
    softmax_limit=widest,
    variants={
        "window": {"window": 5, "global_tokens": 0},
        "dilated": {"window": 5, "dilation": 3},
        "three_globals": {"window": 3, "global_tokens": 3},
    },
)
class Longformer(FlexAttends):
    """Sliding-window attention with dilation and global tokens.

    Paper: Beltagy et al. 2020, Section 3.1 (window, dilation, global attention, its projections).
    Symbols: w → window - 1 for the symmetric form (theirs counts w/2 keys on each side and leaves
        the position itself out of the count), Q_g, K_g, V_g → the streams global_query, global_key,
        global_value.
    Differs: global tokens are the first positions, not any; window and dilation are the same for
        all heads of a layer; causal attention keeps the window wholly in the past, and a global
        token then sees and is seen along the order of positions.
    """

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """A window as wide as the input, or global tokens only."""
        n, found = geometry.keys, doubts_of_window(options.window, geometry.keys)
        if options.global_tokens >= n:
            found += (f"global_tokens={options.global_tokens} are all {n} tokens: every token sees all",)
        return found

    def attend(
        self,
        query: Float[Tensor, "batch heads n head_dim"],
        key: Float[Tensor, "batch heads n head_dim"],
        value: Float[Tensor, "batch heads n head_dim"],
        key_valid: Bool[Tensor, "batch n"] | None,
        **global_streams: Tensor,
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """The band of the other tokens in blocks, after the rows of the global ones."""
        batch, heads, n, _ = query.shape
        g, dilation = min(self.options.global_tokens, n), self.options.dilation
        rows = [self._global_rows(query, key_valid, **global_streams)] if g else []
        if n > g:
            valid = query.new_ones(batch, n, dtype=torch.bool) if key_valid is None and dilation > 1 else key_valid
            length = math.ceil((n - g) / dilation)
            left, right = reach(self.geometry, self.options, length)
            local = banded_attention(
                _fold(query[:, :, g:], dilation),
                _fold(key[:, :, g:], dilation),
                _fold(value[:, :, g:], dilation),
                None if valid is None else _fold(valid[:, None, g:, None], dilation)[..., 0].repeat(1, heads, 1),
                left=left,
                right=right,
                extra_key=_repeat(key[:, :, :g], dilation),
                extra_value=_repeat(value[:, :, :g], dilation),
                extra_valid=None if valid is None else valid[:, :g].clone(),  # a view would keep the whole mask
                dropout=self.options.dropout if self.training else 0.0,
            )
            if dilation > 1:
                local = local.unflatten(1, (heads, dilation)).transpose(2, 3).flatten(2, 3)[:, :, : n - g]
            rows.append(local)
        return torch.cat(rows, dim=2) if len(rows) > 1 else rows[0]

    attend_tiled = attend

    def attend_flex(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **global_streams: Tensor
    ) -> Float[Tensor, "batch heads n head_dim"]:
        """PyTorch's FlexAttention over a block mask; the few global rows as in ``attend``."""
        g = min(self.options.global_tokens, query.shape[2])
        local = flex_attention_over(lambda _, q, k: self.sees(q, k), query, key, value, key_valid)
        return torch.cat([self._global_rows(query, key_valid, **global_streams), local[:, :, g:]], dim=2) if g else local

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether a query that is no global token sees a key, by their positions (broadcast)."""
        o, distance = self.options, key - query
        left = o.window - 1 if self.geometry.causal else o.window // 2
        right = 0 if self.geometry.causal else left
        near = (distance % o.dilation == 0) & (distance >= -left * o.dilation) & (distance <= right * o.dilation)
        return near | ((key < o.global_tokens) & ((distance <= 0) | (not self.geometry.causal)))

    def _global_rows(
        self,
        query: Tensor,
        key_valid: Tensor | None,
        global_query: Tensor | None = None,
        global_key: Tensor | None = None,
        global_value: Tensor | None = None,
    ) -> Float[Tensor, "batch heads g head_dim"]:
        """softmax(Q_g K_gᵀ / √d) V_g for the few global queries over all valid keys, in their past if causal."""
        assert global_query is not None and global_key is not None and global_value is not None
        valid = query.new_ones(query.shape[0], query.shape[2], dtype=torch.bool) if key_valid is None else key_valid
        scores = (global_query * global_query.shape[-1] ** -0.5) @ global_key.mT
        allowed = valid[:, None, None, :]
        if self.geometry.causal:
            allowed = allowed & torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        dropout = self.options.dropout if self.training else 0.0
        return F.dropout(softmax_over_valid(scores, allowed), dropout) @ global_value


def _fold(x: Tensor, dilation: int) -> Tensor:
    """Positions of one residue class become a sequence, and the classes stand beside the heads."""
    if dilation == 1:
        return x
    length = math.ceil(x.shape[2] / dilation)
    filled = F.pad(x, (0, 0, 0, length * dilation - x.shape[2])).unflatten(2, (length, dilation))
    return filled.transpose(2, 3).flatten(1, 2)


def _repeat(x: Tensor, dilation: int) -> Tensor:
    """The same for each residue class."""
    return x if dilation == 1 else x[:, :, None].expand(-1, -1, dilation, -1, -1).flatten(1, 2)
