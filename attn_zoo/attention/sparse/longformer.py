"""Longformer: yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ over the keys j in a window around i, and over a few global tokens. Global tokens see
all tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Shaped
from torch import Tensor

from attn_zoo.attention.sparse._pairs import PairwiseAttention
from attn_zoo.contract import FLOAT, Capabilities, Cost, DropoutOptions, Geometry, SinkOptions, Stream
from attn_zoo.contract.masks import allowed_pairs, softmax_over_valid, with_sink_token
from attn_zoo.contract.options import WIDE, at_least, bounded, window_by_length
from attn_zoo.kernels.cpu import window as band
from attn_zoo.kernels.flex import MaskMod
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries, real_positions


@dataclass
class Options(SinkOptions, DropoutOptions):
    """Options of Longformer."""

    window: int = window_by_length()
    """Number of keys in the window of a query, the query's own position included. It must be odd. If causal, the window ends at the
    query.
    """
    dilation: int = bounded(1)
    """Distance between adjacent keys of a window, in positions. 1 leaves no gaps."""
    global_tokens: int = bounded(1, at_least(0, "positions"))
    """Number of first positions that see all positions and that all positions see, such as a class token."""


def reach(geometry: Geometry, options: Options, length: int) -> tuple[int, int]:
    """Return how many keys of its window a position sees on its left and on its right.

    With dilation d, a window has only every d-th position, so ``length`` counts only every d-th position of the sequence.
    """
    left = options.window - 1 if geometry.causal else options.window // 2
    right = 0 if geometry.causal else left
    return min(left, length - 1), min(right, length - 1)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of attention to the windows, attention to the global keys, and attention from the global
    tokens.

    The backward pass computes the weights of the windows again.

    The state holds keys and values of the global tokens and of the positions that later windows reach. Until all global tokens are
    read, the state also holds the ``global_key`` and ``global_value`` of the global tokens so far, which only global tokens see.
    """
    n, g, dilation, inner = geometry.keys, min(options.global_tokens, geometry.keys), options.dilation, geometry.inner_dim
    wide = geometry.heads * (geometry.head_dim + options.sinks)  # tiles take a sink as one more global key and one more channel
    left, right = reach(geometry, options, length := math.ceil((n - g) / dilation))
    local, local_backward = band.band_flops(length, left, right, extra=g + options.sinks)
    flops = 4 * g * n * inner + dilation * local * wide
    backward = 8 * g * n * inner + dilation * local_backward * wide
    held = min(n, (options.window - 1) * dilation + 1 + g)
    held = held if geometry.latent_dim else max(2 * g, held)  # a latent holds the global keys and values, too
    state = FLOAT * held * geometry.cached_width() if geometry.causal else None
    return Cost(flops=flops, parameters=geometry.heads * options.sinks, backward_flops=backward, state_bytes=state)


def streams(geometry: Geometry, options: Options) -> tuple[Stream, ...]:
    """Return the streams (further projections of the tokens): the queries, keys and values of attention from global tokens. They
    start as copies of the ordinary projections.
    """
    if not options.global_tokens:
        return ()
    return (
        Stream("global_query", of="queries", starts_as="query", first=options.global_tokens),
        Stream("global_key", of="keys", starts_as="key"),
        Stream("global_value", of="keys", starts_as="value"),
    )


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
    softmax_limit=lambda geometry: Longformer(geometry, Options(window=2 * geometry.keys + 1, global_tokens=0)),
    variants={
        "window": {"window": 5, "global_tokens": 0},
        "dilated": {"window": 5, "dilation": 3},
        "three_globals": {"window": 3, "global_tokens": 3},
        "sinks": {"window": 5, "sinks": True},
    },
)
class Longformer(PairwiseAttention[Options]):
    """Softmax attention to a sliding window, which may be dilated, and to a few global tokens. Global tokens see all tokens.

    Paper: Beltagy et al. 2020, Section 3.1 (window, dilation, global attention and its projections).
    Symbols: w → window - 1 if bidirectional, because the paper's w does not count the position itself; Q_g, K_g, V_g → the streams
        ``global_query``, ``global_key`` and ``global_value`` (a stream is a further projection of the tokens).
    Differs: global tokens are the first positions; in the paper any tokens can be global. Window and dilation are the same for all
        heads of a layer. If causal, the window reaches into the past alone, a global token sees only its past, and later positions
        see the token. Sinks (learned scores in the softmax that belong to no key) are an addition; global tokens have them, too.
    Nature: Each layer reaches one window further. Tokens outside this reach are seen through global tokens alone, and are hardly
        recalled.
    """

    saturates = (*WIDE, ("global_tokens", "is at least the number of tokens ({n}), so every token sees all tokens"))

    def mask_mod(self, n: int, device: torch.device) -> MaskMod:
        """Return a function of (head, query index, key index) that returns True if the key is global, or in the dilated window of
        the query. If causal, later keys are excluded.
        """
        w, dilation, g, causal = self.options.window, self.options.dilation, self.options.global_tokens, self.geometry.causal
        left, right = (w - 1, 0) if causal else (w // 2, w // 2)

        def seen(_: Tensor, query: Tensor, key: Tensor) -> Tensor:
            distance = key - query
            near = (distance % dilation == 0) & (distance >= -left * dilation) & (distance <= right * dilation)
            return near | ((key < g) & (distance <= 0) if causal else key < g)

        return seen

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **global_streams: Tensor) -> Queries:
        """Return the outputs. Global tokens attend to all keys. The outputs of other tokens come from n × n scores, masked to the
        window and the global keys.
        """
        return self._after_global_rows(super().definition, query, key, value, key_valid, **global_streams)

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **global_streams: Tensor) -> Queries:
        """Return the outputs, computed in blocks of queries with one softmax over the window and the global keys. Global tokens
        attend to all keys.
        """
        return self._after_global_rows(self._windows, query, key, value, key_valid, **global_streams)

    def attend_tiled(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **global_streams: Tensor) -> Queries:
        """Return the outputs of ``attend``, computed in tiles that fit CPU caches."""
        return self._after_global_rows(self._windows_tiled, query, key, value, key_valid, **global_streams)

    def attend_flex(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **global_streams: Tensor) -> Queries:
        """Return the outputs, computed by PyTorch's FlexAttention over the window and the global keys. Global tokens attend to all
        keys.
        """
        return self._after_global_rows(super().attend_flex, query, key, value, key_valid, **global_streams)

    def _after_global_rows(
        self, local: Callable[..., Tensor], query: Queries, key: Keys, value: Keys, key_valid: KeyValid, **global_streams: Tensor
    ) -> Queries:
        """Return softmax(Q_g K_gᵀ / √d) V_g of the global tokens over valid (causal: past) keys, then the outputs of ``local``."""
        if not global_streams:
            return local(query, key, value, key_valid)
        global_query, global_key, global_value = (global_streams[f"global_{name}"] for name in ("query", "key", "value"))
        allowed = allowed_pairs(global_query, global_key, key_valid, causal=self.geometry.causal)
        weights = softmax_over_valid((global_query * query.shape[-1] ** -0.5) @ global_key.mT, allowed, self.sinks)
        rows = F.dropout(weights, self.options.dropout, self.training) @ global_value
        if (others := query.shape[2] - rows.shape[2]) == 0:
            return rows
        outputs = local(query, key, value, key_valid)
        return torch.cat([rows, outputs if outputs.shape[2] == others else outputs[:, :, -others:]], dim=2)

    def _windows(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of all but the first g positions. In a residue class of the dilation, windows have no gaps."""
        n, g, dilation, device = query.shape[2], self.options.global_tokens, self.options.dilation, query.device
        valid = real_positions(query, key_valid)[:, None, :, None]
        global_key, global_value, global_valid = (x[:, :, None, None, :g] for x in (key, value, valid))
        query, key, value, valid = (_by_residue(x[:, :, g:], dilation) for x in (query, key, value, valid))

        left, right = reach(self.geometry, self.options, length := query.shape[3])
        block = max(left, band.SMALLEST_BLOCK)
        fill, width = -length % block, left + block + right
        query = F.pad(query, (0, 0, 0, fill)).unflatten(3, (-1, block))  # (batch, heads, classes, blocks, block, head_dim)
        # Keys from left before to right after each block: (batch, heads, classes, blocks, width, head_dim)
        key, value, valid = (F.pad(x, (0, 0, left, right + fill)).unfold(3, width, block).mT for x in (key, value, valid))
        distance = torch.arange(width, device=device) - left - torch.arange(block, device=device)[:, None]
        window = valid.mT & (distance >= -left) & (distance <= right)
        allowed = torch.cat([global_valid.mT.expand(*window.shape[:-1], -1), window], dim=-1)

        scores = torch.cat([query @ global_key.mT, query @ key.mT], dim=-1) * query.shape[-1] ** -0.5
        weights = F.dropout(softmax_over_valid(scores, allowed, self.sinks), self.options.dropout, self.training)
        local = weights[..., :g] @ global_value + weights[..., g:] @ value
        return local.flatten(3, 4)[:, :, :, :length].transpose(2, 3).flatten(2, 3)[:, :, : n - g]

    def _windows_tiled(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        g, dilation = self.options.global_tokens, self.options.dilation
        left, right = reach(self.geometry, self.options, math.ceil((query.shape[2] - g) / dilation))
        sinks = 0 if self.sinks is None else 1
        if self.sinks is not None:  # a sink is one more global key
            query, key, value, key_valid = with_sink_token(query, key, value, key_valid, self.sinks)
        how = {"extra": g + sinks, "dilation": dilation, "left": left, "right": right}
        out = band.attend_dilated(query, key, value, key_valid, **how, dropout=self.dropout_rate)
        return out[..., : out.shape[-1] - sinks]


def _by_residue(x: Shaped[Tensor, "batch heads n d"], dilation: int) -> Shaped[Tensor, "batch heads dilation length d"]:
    """Return the positions grouped by residue class modulo the dilation, filled up with zeros."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % dilation)).unflatten(2, (-1, dilation)).transpose(2, 3)
