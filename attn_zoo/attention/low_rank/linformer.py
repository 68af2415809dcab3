"""Linformer: Y = softmax(Q (E K)ᵀ / √d) F V, with E and F of size k × n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.attention._masks import check_dropout, softmax_over_valid
from attn_zoo.attention.low_rank._projections import (
    LENGTH_MAPS,
    LearnedMap,
    LowRankAttention,
    LowRankOptions,
    Projection,
    Sharing,
    low_rank_cost,
)
from attn_zoo.contract import Capabilities, Cost, Geometry
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
    """E K and F V (n k d a head each), then Q (E K)ᵀ and P (F V) (n k d a head each)."""
    nd = geometry.queries * geometry.head_dim
    return low_rank_cost(geometry, options, lambda heads, k: (4 * heads * k * nd, 8 * heads * k * nd))


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
    implementations=("eager", "sdpa", "triton"),
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

    def definition(
        self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """Eq. 7, head by head: headᵢ = softmax(Qᵢ (Eᵢ Kᵢ)ᵀ / √d) Fᵢ Vᵢ."""
        valid = key_valid if key_valid is not None else torch.ones_like(key[:, 0, :, 0], dtype=torch.bool)
        heads = {}
        for group, map_ in zip(self.head_groups, self.maps, strict=True):  # one group, but for uneven projected lengths
            for at, i in enumerate(group):
                # Without sharing E and F are Eᵢ and Fᵢ; headwise E and F serve all heads; shared by key and value, F is E.
                own = at if self.options.sharing is Sharing.none else 0
                weight = getattr(map_, "weight", None)
                e, f = (None, None) if weight is None else (weight[0, own], weight[-1, own])
                short_key, holds = self._projected(e, key[:, i], valid, map_.shape.window)
                short_value, _ = self._projected(f, value[:, i], valid, map_.shape.window)
                scores = query[:, i] @ short_key.mT / query.shape[-1] ** 0.5
                heads[i] = softmax_over_valid(scores, holds) @ short_value
        return torch.stack([heads[i] for i in range(len(heads))], dim=1)

    def _projected(
        self, e: Tensor | None, x: Float[Tensor, "batch n d"], valid: Bool[Tensor, "batch n"], window: int
    ) -> tuple[Float[Tensor, "batch k d"], Bool[Tensor, "batch 1 k"] | None]:
        """E X, or the mean, maximum or convolution of each window of n / k tokens, and the windows that hold a token."""
        kind = self.options.projection
        if kind in (Projection.learned, Projection.random):
            assert e is not None
            return e[:, : x.shape[1]] @ x, None
        results, holds = [], []
        for rows, real in zip(x.split(window, dim=1), valid[..., None].split(window, dim=1), strict=True):
            if kind is Projection.convolution:
                assert e is not None
                results.append(rows.flatten(1) @ e[: rows[0].numel()])
            elif kind is Projection.mean:
                results.append(rows.sum(dim=1) / real.sum(dim=1).clamp(min=1))
            else:
                highest = rows.masked_fill(~real, float("-inf")).amax(dim=1)
                results.append(highest.masked_fill(~real.any(dim=1), 0))
            holds.append(real.any(dim=1))
        return torch.stack(results, dim=1), torch.stack(holds, dim=2)

    def attend_compressed(
        self,
        query: Float[Tensor, "batch heads queries head_dim"],
        key: Float[Tensor, "batch heads k head_dim"],
        value: Float[Tensor, "batch heads k head_dim"],
        valid: Bool[Tensor, "batch k"] | None = None,
    ) -> Float[Tensor, "batch heads queries head_dim"]:
        """softmax(Q K̄ᵀ / √d) V̄ with the projected keys K̄ = E K and values V̄ = F V."""
        dropout = self.options.dropout if self.training else 0.0
        allowed = None if valid is None else valid[:, None, None]
        if self.implementation == "sdpa":
            # Rows without any key become zero later; until then they see all, because fused kernels may answer NaN.
            mask = None if allowed is None else allowed | ~allowed.any(dim=-1, keepdim=True)
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        if self.implementation == "triton":
            from attn_zoo.kernels.linformer import linformer_attention

            return linformer_attention(query, key, value, dropout=dropout)
        weights = softmax_over_valid(query @ (key * query.shape[-1] ** -0.5).mT, allowed)
        return F.dropout(weights, dropout) @ value
