"""Linformer with LSH: Y = softmax(Q [K_near ; E K]ᵀ / √d) [V_near ; F V] with kⱼ = qⱼ / |qⱼ|.

Positions are sorted by hash bucket. K_near are the keys in a window around the query in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attn_zoo.attention.content._hashing import BUCKETS, ROTATIONS, default_buckets, lsh_buckets, rotation_columns
from attn_zoo.attention.low_rank._projections import LowRankAttention, LowRankOptions, low_rank_cost
from attn_zoo.attention.low_rank._window import Few, attend_near, naive_attention
from attn_zoo.contract import Capabilities, Cost, DropoutOptions, Geometry, LengthMap
from attn_zoo.contract.options import WIDE, bounded, window_by_length
from attn_zoo.kernels.cpu.window import band_flops
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options(LowRankOptions, DropoutOptions):
    """Options of Linformer with LSH."""

    window: int = window_by_length()
    """Number of keys in the window around a query in the order of buckets, the query's own position included. It must be odd."""
    buckets: int = bounded(0, BUCKETS)
    """Number of hash buckets, a power of two. 0 means about 2 n / window, where n is the length for which the mechanism is built. A
    bucket then fills half a window.
    """


def bucket_count(keys: int, options: Options) -> int:
    """Return the number of hash buckets: the option or, if it is 0, about 2 n / window."""
    return options.buckets or default_buckets(4 * keys, options.window)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of hashing, the projections E K and F V, and attention to the window and to the projected
    keys. Hashing has no gradient.
    """
    n, d = geometry.keys, geometry.head_dim
    reach = min(options.window // 2, n - 1)
    hashed = 2 * n * rotation_columns(bucket_count(n, options))

    def compare(heads: int, k: int) -> tuple[int, int]:
        forward, backward = band_flops(n, reach, reach, extra=k)
        return heads * d * (hashed + forward), heads * d * backward

    return low_rank_cost(geometry, options, compare)


@register_attention(
    "linformer_lsh",
    title="Linformer + LSH",
    paper="Wang et al. 2020, arXiv:2006.04768, with Kitaev et al. 2020, arXiv:2001.04451",
    equation="Eq. 7 with the keys near in the order of buckets (there Eq. 6) beside the projected ones",
    options=Options,
    can=Capabilities(
        causal=False, key_padding=True, cross=False, any_length=False, shorter=True, random_at_build=True, shares_query_key=True
    ),
    time="n log n d + n k d + n w d",
    memory="n k + n w + n d",
    cost=cost,
    implementations=("eager", "tiled"),
    reads=("query", "value"),
    variants={
        "no_sharing": {"sharing": "none", "window": 5},
        "key_value": {"sharing": "key_value", "projected_length": 3, "buckets": 32},
        "random": {"projection": "random"},
        "mean": {"projection": "mean", "window": 33},
    },
)
class LinformerLSH(LowRankAttention[Options]):
    """Softmax attention to the keys nearest in the order of hash buckets, and to all keys projected along the length.

    Papers: Wang et al. 2020, Eq. 7, for the projection; Kitaev et al. 2020, Section 2, for shared queries and keys, and for sorting
        by bucket and then by position (Eq. 6).
    Symbols: E, F → ``matrix`` of a MatrixMap; k → projected_length, n → keys, n_buckets → buckets, R → rotations, w → window.
    Differs: neither paper combines projections with hashing. Positions are hashed once. In the order of buckets, each position sees
        equally many neighbours on both sides, even if they are in another bucket; in Eq. 6 it sees its own chunk and the chunk
        before it. A position sees itself, and is also part of the projected keys. With more than 16 buckets, the number of a bucket
        combines several hashes with at most 16 buckets each. The hash is drawn once, so evaluation is deterministic. Padding comes
        last in the order and is not seen. The projections are treated as in ``linformer``.
    """

    rotations: Float[Tensor, "heads 1 head_dim rotations"]
    saturates = WIDE

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.register_buffer("rotations", torch.randn(geometry.heads, 1, geometry.head_dim, ROTATIONS))

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Return warnings about too many projected keys, a window as wide as the input, and a single bucket."""
        one = options.window < geometry.keys and bucket_count(geometry.keys, options) == 1
        words = "one bucket holds all tokens: their order decides who sees whom, not the hash"
        return (*super().warnings(geometry, options), *(words,) * one)

    def compressed_length(self) -> int | None:
        """Return None: the layer cannot compress its tokens, because the window needs each key."""
        return None

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of one softmax over the k projected keys and all n keys. Keys outside a window in the order of hash
        buckets are masked.
        """

        def heads(e: LengthMap, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            rank = self._order(q, e.heads, key_valid).argsort(dim=-1)
            near = (rank[..., :, None] - rank[..., None, :]).abs() <= self.options.window // 2
            near = near if key_valid is None else near & key_valid[:, None, None]
            return naive_attention(q, k, v, near, Few(*e.project(k, v, key_valid), e.valid(key_valid)))

        return self.by_map(heads, query, _unit(key), value)

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of one softmax over the projected keys E K and a window of the keys sorted by bucket."""
        how: dict[str, Any] = {"window": self.options.window, "dropout": self.dropout_rate, "tiled": self.implementation == "tiled"}
        first = None  # in the order of buckets, padding comes last
        if key_valid is not None:
            first = torch.arange(key_valid.shape[1], device=key.device) < key_valid.sum(dim=-1, keepdim=True)

        def heads(e: LengthMap, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            few, order = Few(*e.project(k, v, key_valid), e.valid(key_valid)), self._order(q, e.heads, key_valid)
            q, k, v = (_permuted(x, order) for x in (q, k, v))
            return _permuted(attend_near(q, k, v, first, few, **how), order.argsort(dim=-1))

        return self.by_map(heads, query, _unit(key), value)

    attend_tiled = attend

    @torch.no_grad()
    def _order(self, query: Queries, heads: Sequence[int], valid: KeyValid) -> Int[Tensor, "batch heads queries"]:
        """Return the positions of each head, sorted by bucket, then by position. Padding comes last."""
        buckets, tiled = bucket_count(self.geometry.keys, self.options), self.implementation == "tiled"
        with without_autocast(query.device):  # so that buckets do not depend on autocast
            bucket = lsh_buckets(query, self.rotations[list(heads)], buckets, tiled=tiled)[0]
        return (bucket if valid is None else bucket.masked_fill(~valid[:, None], buckets)).argsort(dim=-1, stable=True)


def _permuted(x: Keys, order: Int[Tensor, "batch heads keys"]) -> Keys:
    return x.take_along_dim(order[..., None], dim=2)


def _unit(key: Keys) -> Keys:
    """Return keys of unit length. Zero keys stay zero in every dtype (PyTorch's default epsilon, 1e-12, is zero in float16)."""
    return F.normalize(key, dim=-1, eps=max(1e-12, torch.finfo(key.dtype).tiny))
