"""Linformer with a window: Y = softmax(Q [K_near ; E K]ᵀ / √d) [V_near ; F V]. K_near are the keys in a window around the query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from attn_zoo.attention.low_rank._projections import LowRankAttention, LowRankOptions, low_rank_cost
from attn_zoo.attention.low_rank._window import Few, attend_near, naive_attention, within
from attn_zoo.contract import Capabilities, Cost, DropoutOptions, Geometry, LengthMap
from attn_zoo.contract.options import WIDE, window_by_length
from attn_zoo.kernels.cpu.window import band_flops
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options(LowRankOptions, DropoutOptions):
    """Options of Linformer with a window."""

    window: int = window_by_length()
    """Number of keys in the window around a query, the query's own position included. It must be odd."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of the projections E K and F V, and of attention to the window and to the projected keys.
    Each projection takes n k d multiply-adds per head.
    """
    n, reach = geometry.keys, min(options.window // 2, geometry.keys - 1)

    def compare(heads: int, k: int) -> tuple[int, int]:
        forward, backward = band_flops(n, reach, reach, extra=k)
        return heads * geometry.head_dim * forward, heads * geometry.head_dim * backward

    return low_rank_cost(geometry, options, compare)


@register_attention(
    "linformer_window",
    title="Linformer + window",
    paper="Wang et al. 2020, arXiv:2006.04768, with Beltagy et al. 2020, arXiv:2004.05150",
    equation="Eq. 7 with the keys of a window beside the projected ones",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=False, any_length=False, shorter=True, random_at_build=True),
    time="n k d + n w d",
    memory="n k + n w + n d",
    cost=cost,
    implementations=("eager", "tiled"),
    variants={
        "no_sharing": {"sharing": "none", "window": 5},
        "key_value": {"sharing": "key_value", "projected_length": 3},
        "random": {"projection": "random"},
        "mean": {"projection": "mean", "window": 33},
    },
)
class LinformerWindow(LowRankAttention[Options]):
    """Softmax attention to a window of keys, and to all keys projected along the length.

    Papers: Wang et al. 2020, Eq. 7, for the projection; Beltagy et al. 2020, Section 3.1, for the window.
    Symbols: E, F → ``matrix`` of a MatrixMap; k → projected_length, n → keys, w → window.
    Differs: neither paper combines projections with a window. A key within the window is also part of the projected keys. Padding,
        shorter inputs and initialisation are treated as in ``linformer``.
    Training: with ``init=pooling`` and ``equalised``, the accuracy on recall of 8 key-value pairs was 25 % after 700 steps and 66 %
        after 1,770. Without these two options it was 12 % after 700 steps (one seed each).
    """

    saturates = WIDE

    def compressed_length(self) -> int | None:
        """Return None: the layer cannot compress its tokens, because the window needs each key."""
        return None

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of one softmax over the k projected keys and all n keys. Keys outside the window are masked."""
        near = within(query.shape[2], self.options.window // 2, key_valid, query.device)

        def heads(e: LengthMap, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return naive_attention(q, k, v, near, Few(*e.project(k, v, key_valid), e.valid(key_valid)))

        return self.by_map(heads, query, key, value)

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of one softmax over the projected keys E K and the window."""
        how: dict[str, Any] = {"window": self.options.window, "dropout": self.dropout_rate, "tiled": self.implementation == "tiled"}

        def heads(e: LengthMap, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend_near(q, k, v, key_valid, Few(*e.project(k, v, key_valid), e.valid(key_valid)), **how)

        return self.by_map(heads, query, key, value)

    attend_tiled = attend
