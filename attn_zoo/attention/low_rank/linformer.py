"""Linformer: Y = softmax(Q (E K)ᵀ / √d) F V, with E and F of size k × n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.attention._kept import FLOAT, fused_bytes, softmax_bytes
from attn_zoo.attention._masks import check_dropout, softmax_over_valid
from attn_zoo.attention.low_rank._dense_maps import LearnedMap
from attn_zoo.attention.low_rank._low_rank import LENGTH_MAPS, LowRankAttention, LowRankOptions, low_rank_cost
from attn_zoo.contract import Capabilities, Cost, Geometry
from attn_zoo.kernels.cpu._tiling import row_blocks
from attn_zoo.registry import register_attention


@dataclass
class Options(LowRankOptions):
    """Options of Linformer."""

    dropout: float = 0.0
    """Share of attention weights set to zero in training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dropout("linformer", self.dropout)


def cost(geometry: Geometry, options: Options) -> Cost:
    """E K and F V (n k d a head each), then Q K'ᵀ and P V' (n k d a head each).

    Kept beside what the projection keeps: projected keys and values, and the weights or what a fused kernel keeps.
    """
    n, d = geometry.queries, geometry.head_dim

    def compare(heads: int, r: int, results_kept: bool) -> Cost:
        results = 0 if results_kept else FLOAT * heads * r * d
        eager = results + FLOAT * heads * r * d + softmax_bytes(heads * n, r)  # values, scaled keys
        fused = 2 * results + fused_bytes(heads * n, d)
        kept = {"eager": eager, "sdpa": fused}
        if Linformer.refuses("triton", geometry, options) is None:
            kept["triton"] = fused
        return Cost(4 * heads * r * n * d, parameters=0, backward_flops=8 * heads * r * n * d, activation_bytes=kept)

    return low_rank_cost(geometry, options, compare)


def identity_linformer(geometry: Geometry) -> Linformer:
    """projected_length = keys and E = F = identity: Eq. 7 is then softmax attention."""
    built = Linformer(geometry, Options(projected_length=geometry.keys, allow_full_rank=True))
    for map_ in built.maps:
        assert isinstance(map_, LearnedMap)
        for matrix in map_.weight.flatten(0, 1):
            nn.init.eye_(matrix)
    return built


@register_attention(
    "linformer",
    title="Linformer",
    paper="Wang et al. 2020, arXiv:2006.04768",
    equation="Eq. 7",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=True, any_length=False, shorter=True, random_at_build=True),
    time="n k d",
    memory="n k",
    cost=cost,
    implementations=("eager", "tiled", "sdpa", "triton"),
    softmax_limit=identity_linformer,
    variants={
        "no_sharing": {"sharing": "none"},
        "key_value": {"sharing": "key_value", "projected_length": 3},
        "layerwise": {"sharing": "layerwise"},
        "random": {"projection": "random"},
        "mean": {"projection": "mean"},
        "max": {"projection": "max", "sharing": "none"},
        "convolution": {"projection": "convolution"},
    },
)
class Linformer(LowRankAttention):
    """Softmax attention over keys and values projected along the length.

    Paper: Wang et al. 2020, Eq. 7; sharing, uneven projected lengths and other projections as in its Section 4.
    Symbols: E, F → weight of LearnedMap, k → projected_length, n → keys.
    Differs: padded keys and values are zero before they are projected (the paper has no padding), a window of
        padding alone takes no part, and inputs shorter than n count as padded to n. E and F start from N(0, 1/n), which
        keeps the scale of keys and values, where the paper's theorems use N(0, 1/k); the random projection
        is drawn in the same way. Windows hold ⌈n/k⌉ tokens, so that there may be a few less than k. The
        convolution runs over all channels of a head and has no bias.

    Raises:
        UnsupportedError: projected_length is not below the number of keys.
    """

    options: Options

    attend_sdpa = attend_triton = LowRankAttention.attend

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Any) -> str | None:
        """The Triton kernels hold a head on chip and know no mask on projected keys, which only windows need."""
        if implementation != "triton":
            return None
        if geometry.head_dim > 128:
            return f"linformer's Triton kernels take a head_dim of up to 128, got {geometry.head_dim}; use implementation=sdpa"
        if not issubclass(LENGTH_MAPS[options.projection], LearnedMap):
            return (
                f"linformer's Triton kernels project by matrices, got projection={options.projection.value}; "
                "use projection=learned or random, or implementation=sdpa"
            )
        return None

    def attend_compressed(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads r head_dim"],
        value: Float[Tensor, "batch heads r head_dim"],
        valid: Bool[Tensor, "batch r"] | None = None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """softmax(Q K'ᵀ / √d) V', in blocks of queries so that no temporary outgrows the allocator's cheap range."""
        dropout = self.options.dropout if self.training else 0.0
        if self.implementation == "sdpa":
            # Rows without any key become zero later; until then they see all, because fused kernels may answer NaN.
            mask = None if valid is None else (valid | ~valid.any(dim=-1, keepdim=True))[:, None, None]
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        if self.implementation == "triton":
            from attn_zoo.kernels.linformer import linformer_attention

            return linformer_attention(query, key, value, dropout=dropout)
        scaled = (key * query.shape[-1] ** -0.5).mT
        allowed = None if valid is None else valid[:, None, None]
        blocks = row_blocks(query, columns=key.shape[2])
        return torch.cat([F.dropout(softmax_over_valid(rows @ scaled, allowed), dropout) @ value for rows in blocks], dim=2)
