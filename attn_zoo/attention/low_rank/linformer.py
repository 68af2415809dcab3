"""Linformer: Y = softmax(Q (E K)ᵀ / √d) F V. E and F are k × n matrices that project n keys and values to k."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F

from attn_zoo.attention.low_rank._projections import LENGTH_MAPS, LowRankAttention, LowRankOptions, MatrixMap, low_rank_cost
from attn_zoo.contract import Capabilities, Cost, DropoutOptions, Geometry, softmax_over_valid
from attn_zoo.contract.length_maps import with_identity
from attn_zoo.kernels.sdpa import sdpa_over_valid
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Compressed, CompressedValid, Keys, KeyValid, Queries


@dataclass
class Options(LowRankOptions, DropoutOptions):
    """Options of Linformer."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of the projections E K and F V, the scores and the weighted sums, each n k d multiply-adds
    per head.
    """
    nd = geometry.queries * geometry.head_dim
    return low_rank_cost(geometry, options, lambda heads, k: (4 * heads * k * nd, 8 * heads * k * nd))


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
    softmax_limit=lambda g: with_identity(Linformer(g, Options(projected_length=g.keys, allow_full_rank=True))),
    variants={
        "no_sharing": {"sharing": "none"},
        "key_value": {"sharing": "key_value", "projected_length": 3},
        "layerwise": {"sharing": "layerwise"},
        "random": {"projection": "random"},
        "equalised": {"equalised": True},
        "mean": {"projection": "mean"},
        "max": {"projection": "max", "sharing": "none"},
        "convolution": {"projection": "convolution"},
    },
)
class Linformer(LowRankAttention[Options]):
    """Softmax attention to keys and values that are projected along the length, from n to k.

    Paper: Wang et al. 2020, Eq. 7; sharing, uneven projected lengths and other projections as in its Section 4.
    Symbols: E, F → ``matrix`` of a MatrixMap; k → projected_length, n → keys.
    Differs: padded keys and values are set to zero before they are projected (the paper has no padding). Inputs shorter than n
        count as padded to n. By default, E and F start from N(0, 1/n), so that projected keys and values have the scale of the
        original ones; the paper's theorems use N(0, 1/k). Other values of ``init``, and ``equalised``, are additions. The random
        projection is drawn from N(0, 1/n). Projections by windows (``mean``, ``max``, ``convolution``) have windows of ⌈n/k⌉
        tokens, so there may be fewer than k windows. A window of padding alone is left out. The convolution has no bias.
    Training: with ``init=pooling`` and ``equalised``, tasks are learned in fewer steps than with the defaults
        (``docs/reports/linformer.md``).
    """

    attend_sdpa = attend_triton = LowRankAttention.attend

    @classmethod
    def refuses(cls, implementation: str, geometry: Geometry, options: Options) -> str | None:
        """Return a reason if ``triton`` is requested but cannot run, else None. ``triton`` needs a head_dim of at most 128 and a
        projection by a matrix (learned or random).
        """
        if implementation == "triton" and (geometry.head_dim > 128 or LENGTH_MAPS[options.projection] is not MatrixMap):
            return (
                "linformer:triton must have a head_dim of at most 128 and a projection by a matrix (learned or random); got "
                f"head_dim={geometry.head_dim}, projection={options.projection.value}. Use projection=learned or "
                "random, or implementation=sdpa"
            )
        return None

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs by Eq. 7: P (F V) with the weights P = softmax(Q (E K)ᵀ / √d)."""

        def naive(q: Queries, ek: Compressed, fv: Compressed, valid: CompressedValid) -> Queries:
            return softmax_over_valid(q @ ek.mT / q.shape[-1] ** 0.5, None if valid is None else valid[:, None, None]) @ fv

        return self.by_compressed(naive, query, key, value, key_valid)

    def attend_compressed(self, query: Queries, key: Compressed, value: Compressed, valid: CompressedValid = None) -> Queries:
        """Return the outputs P (F V), where P = softmax(Q (E K)ᵀ / √d), given the projected keys E K and values F V."""
        if self.implementation == "sdpa":
            return sdpa_over_valid(query, key, value, valid, dropout=self.dropout_rate)
        if self.implementation == "triton":
            from attn_zoo.kernels.linformer import linformer_attention

            return linformer_attention(query, key, value, dropout=self.dropout_rate)
        p = softmax_over_valid(query @ (key * query.shape[-1] ** -0.5).mT, None if valid is None else valid[:, None, None])
        return F.dropout(p, self.dropout_rate) @ value
