"""Linformer with LSH: Y = softmax(Q [K hashed alike ; E K]ᵀ / √d) [V hashed alike ; F V], one softmax, with kⱼ = qⱼ / |qⱼ|."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attn_zoo.attention._kept import FLOAT, INDEX
from attn_zoo.attention._masks import check_dropout
from attn_zoo.attention.content._hashing import MOST_HASHES, RADIX, ROTATIONS, default_buckets, hash_positions, rotation_columns
from attn_zoo.attention.low_rank._length_maps import LengthMap
from attn_zoo.attention.low_rank._low_rank import LENGTH_MAPS, LowRankAttention, LowRankOptions, low_rank_cost, map_shapes
from attn_zoo.contract import Capabilities, Cost, Geometry
from attn_zoo.kernels.cpu.window import band_backward_flops, band_flops, banded_attention, check_window, doubts_of_window
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention


@dataclass
class Options(LowRankOptions):
    """Options of Linformer with LSH."""

    window: int = 17
    """Keys a position sees one by one in the order of buckets, itself included; odd, so that it sees as many on either side."""
    buckets: int = 0
    """Buckets, a power of two; 0 takes about 2 length / window, for the length it is built for: half a window holds one."""
    dropout: float = 0.0
    """Share of attention weights set to zero in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window("linformer_lsh", self.window)
        most = RADIX**MOST_HASHES
        if self.buckets and (self.buckets < 1 or self.buckets & (self.buckets - 1) or self.buckets > most):
            raise ValueError(
                f"linformer_lsh.buckets is a power of two up to {most}, or 0 for a number by length; got {self.buckets}"
            )
        check_dropout("linformer_lsh", self.dropout)


def bucket_count(keys: int, options: Options) -> int:
    """As asked, or so many that a bucket is expected within half a window."""
    return options.buckets or default_buckets(4 * keys, options.window)


def cost(geometry: Geometry, options: Options) -> Cost:
    """The hash, which has no gradient; E K and F V (n k d a head each); the band in the order of buckets and the projected keys.

    Kept beside what the projection keeps of values and of keys, which are made here: their norms; queries, keys and values in the
    order of buckets, that order and its inverse, projected keys and values.
    """
    n, d = geometry.keys, geometry.head_dim
    reach = min(options.window // 2, n - 1)
    columns = rotation_columns(bucket_count(n, options))

    def compare(heads: int, r: int, results_kept: bool) -> Cost:
        ordered = (FLOAT * (3 * d + 2) + 2 * INDEX) * heads * n
        return Cost(
            flops=heads * d * (2 * n * columns + band_flops(n, reach, reach, extra=r)),
            parameters=0,
            backward_flops=heads * d * band_backward_flops(n, reach, reach, extra=r),
            activation_bytes={"eager": ordered + (0 if results_kept else 2 * FLOAT * heads * r * d)},
        )

    projected = low_rank_cost(geometry, options, compare)
    return replace(projected, activation_bytes={"eager": projected.activation_bytes["eager"] + _keys_bytes(geometry, options)})


def _keys_bytes(geometry: Geometry, options: Options) -> int:
    """Keys that the map keeps and counts as inputs: half of what it would keep more if keys and values were copies."""
    kind, shapes = LENGTH_MAPS[options.projection], [shape for _, shape in map_shapes(geometry, options)]
    if len(shapes) > 1:  # they are
        return 0
    copied, read = (kind.kept_bytes(shapes[0], frozen=options.frozen, copied=c, kernels=False) for c in (True, False))
    return (copied - read) // 2


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
class LinformerLSH(LowRankAttention):
    """Softmax attention over keys that are hashed alike and over all keys projected along the length.

    Papers: Wang et al. 2020, Eq. 7, for the projection; Kitaev et al. 2020, Section 2, for shared queries and keys, and for
        sorting by bucket and then by position (Eq. 6).
    Symbols: E, F → weight of LearnedMap, k → projected_length, n → keys, n_buckets → buckets, R → rotations, w → window.
    Differs: the combination is in neither paper. Positions are hashed once. In the order of buckets each position sees as many
        neighbours on either side, where Eq. 6 has its own chunk and the one before; whatever lies near is seen, of the same
        bucket or not. A position sees itself, which the projected keys hold as well. Many buckets are products of
        hashes of at most 16. The hash is kept, so that evaluation is deterministic. Padding comes last in the order and takes
        no place. Everything that Linformer's entry says about padding, shorter inputs and initialisation holds here.

    Raises:
        UnsupportedError: projected_length is not below the number of keys.
    """

    options: Options
    rotations: Float[Tensor, "heads 1 head_dim rotations"]

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.register_buffer("rotations", torch.randn(geometry.heads, 1, geometry.head_dim, ROTATIONS))

    @classmethod
    def warnings(cls, geometry: Geometry, options: Any) -> tuple[str, ...]:
        """Those of the projection, and a window as wide as the input, or no hash at all."""
        n, found = geometry.keys, super().warnings(geometry, options)
        if options.window < n and bucket_count(n, options) == 1:
            return (*found, "one bucket holds all tokens: their order decides who sees whom, not the hash")
        return found + doubts_of_window(options.window, n)

    def compressed_length(self) -> int | None:
        """None: those hashed alike are needed one by one."""
        return None

    def _attend_group(self, map_: LengthMap, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        key = F.normalize(key, dim=-1)
        projected_key, projected_value = map_.project(key, value, key_valid)
        projected_valid, valid = map_.valid(key_valid), None
        if key_valid is not None:
            valid = (torch.arange(key_valid.shape[1], device=key.device) < key_valid.sum(dim=-1, keepdim=True))[:, None]
            if projected_valid is None:
                projected_valid = key_valid.any(dim=1, keepdim=True).expand(-1, projected_key.shape[2])
        rows = self._rows(query, self.head_groups[list(self.maps).index(map_)], key_valid)
        reach = min(self.options.window // 2, query.shape[2] - 1)
        query, key, value = (_permuted(t, rows) for t in (query, key, value))
        out = banded_attention(
            query,
            key,
            value,
            valid,
            left=reach,
            right=reach,
            extra_key=projected_key,
            extra_value=projected_value,
            extra_valid=projected_valid,
            dropout=self.options.dropout if self.training else 0.0,
        )
        back = torch.empty_like(rows).scatter_(0, rows, torch.arange(len(rows), device=rows.device))
        return _permuted(out, back).to(value.dtype)

    @torch.no_grad()
    def _rows(
        self, query: Float[Tensor, "batch heads n head_dim"], heads: tuple[int, ...], valid: Bool[Tensor, "batch n"] | None
    ) -> Int[Tensor, "batch_heads_n"]:
        """Each head's positions by bucket, those of one bucket as they come, padding behind all; counted over all heads."""
        batch, _, n, _ = query.shape
        buckets = bucket_count(self.geometry.keys, self.options)
        with without_autocast(query.device):  # a bucket must not depend on the precision of the rest
            bucket = hash_positions(query, self.rotations[list(heads)], buckets)[0]
        if valid is not None:
            bucket = bucket.masked_fill(~valid[:, None], buckets)
        order = bucket.argsort(dim=-1, stable=True).flatten(0, 1)
        return (order + torch.arange(batch * len(heads), device=order.device)[:, None] * n).flatten()


def _permuted(
    x: Float[Tensor, "batch heads n head_dim"], rows: Int[Tensor, "batch_heads_n"]
) -> Float[Tensor, "batch heads n head_dim"]:
    return x.flatten(0, 2).index_select(0, rows).view(x.shape)
