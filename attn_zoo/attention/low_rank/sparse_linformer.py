"""Sparse Linformer: Y = α-entmax(Q (E K)ᵀ / √d) F V: Linformer with weights that may be exactly zero."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.attention._kept import FLOAT, softmax_bytes
from attn_zoo.attention._masks import check_dropout
from attn_zoo.attention.dense._normalisers import check_alpha, entmax_over_valid
from attn_zoo.attention.low_rank._dense_maps import LearnedMap
from attn_zoo.attention.low_rank._low_rank import LowRankAttention, LowRankOptions, low_rank_cost
from attn_zoo.contract import Capabilities, Cost, Geometry
from attn_zoo.kernels.cpu._tiling import row_blocks
from attn_zoo.registry import register_attention


@dataclass
class Options(LowRankOptions):
    """Options of the sparse Linformer."""

    alpha: float = 1.5
    """α: 1 is softmax and so Linformer, 2 is sparsemax, in between the sparser the larger."""
    dropout: float = 0.0
    """Share of attention weights set to zero in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_alpha("sparse_linformer", self.alpha)
        check_dropout("sparse_linformer", self.dropout)


def cost(geometry: Geometry, options: Options) -> Cost:
    """As Linformer's: E K and F V (n k d a head each), then Q K'ᵀ and P V' (n k d a head each).

    Kept beside what the projection keeps: projected keys, scaled, and values, and the weights.
    """
    n, d = geometry.queries, geometry.head_dim

    def compare(heads: int, r: int, results_kept: bool) -> Cost:
        results = 0 if results_kept else FLOAT * heads * r * d
        kept = results + FLOAT * heads * r * d + softmax_bytes(heads * n, r)
        return Cost(4 * heads * r * n * d, 0, backward_flops=8 * heads * r * n * d, activation_bytes={"eager": kept})

    return low_rank_cost(geometry, options, compare)


def identity_softmax(geometry: Geometry) -> SparseLinformer:
    """projected_length = keys, E = F = identity and α = 1: softmax attention."""
    built = SparseLinformer(geometry, Options(projected_length=geometry.keys, allow_full_rank=True, alpha=1.0))
    for map_ in built.maps:
        assert isinstance(map_, LearnedMap)
        for matrix in map_.weight.flatten(0, 1):
            nn.init.eye_(matrix)
    return built


@register_attention(
    "sparse_linformer",
    title="Sparse Linformer",
    paper="Wang et al. 2020, arXiv:2006.04768, with Peters et al. 2019, arXiv:1905.05702",
    equation="Eq. 7 with α-entmax in place of the softmax",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=True, any_length=False, shorter=True, random_at_build=True),
    time="n k d",
    memory="n k",
    cost=cost,
    implementations=("eager", "tiled"),
    softmax_limit=identity_softmax,
    variants={
        "sparsemax": {"alpha": 2.0},
        "between": {"alpha": 1.25, "sharing": "key_value"},
        "no_sharing": {"sharing": "none"},
        "random": {"projection": "random"},
        "mean": {"projection": "mean"},
    },
)
class SparseLinformer(LowRankAttention):
    """α-entmax attention over keys and values projected along the length.

    Papers: Wang et al. 2020, Eq. 7, for the projection; Peters et al. 2019 for α-entmax, and Martins and Astudillo 2016
        (arXiv:1602.02068) for α = 2, sparsemax.
    Symbols: E, F → weight of LearnedMap, k → projected_length, n → keys, α → alpha.
    Differs: the combination is in none of the papers. A weight of zero leaves out a projected key, which is a mixture of all
        tokens, and so no token; under projections by windows it leaves out the tokens of a window. Everything that
        Linformer's entry says about padding, shorter inputs and initialisation holds here.

    Raises:
        UnsupportedError: projected_length is not below the number of keys.
    """

    options: Options

    def attend_compressed(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads r head_dim"],
        value: Float[Tensor, "batch heads r head_dim"],
        valid: Bool[Tensor, "batch r"] | None = None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """α-entmax(Q K'ᵀ / √d) V', in blocks of queries."""
        options, dropout = self.options, self.options.dropout if self.training else 0.0
        scaled = (key * query.shape[-1] ** -0.5).mT
        allowed = None if valid is None else valid[:, None, None]
        blocks = row_blocks(query, columns=key.shape[2])
        return torch.cat(
            [F.dropout(entmax_over_valid(rows @ scaled, allowed, options.alpha), dropout) @ value for rows in blocks], dim=2
        )
