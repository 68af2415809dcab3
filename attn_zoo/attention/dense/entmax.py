"""Entmax attention: Y = α-entmax(Q Kᵀ / √d) V. α-entmax replaces softmax, and gives keys with low scores a weight of
exactly zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attn_zoo.attention.dense._normalisers import ALPHA, entmax_by_bisection, entmax_over_valid
from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, Geometry, allowed_pairs, bounded
from attn_zoo.kernels.cpu._tiling import row_blocks
from attn_zoo.kernels.cpu.entmax import entmax_attention
from attn_zoo.precision import without_autocast
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options:
    """Options of entmax attention."""

    alpha: float = bounded(1.5, ALPHA)
    """α: 1 is softmax, 2 is sparsemax. With a larger α, more weights are zero. 1.5 and 2 are computed fastest."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the scores Q Kᵀ and of the weighted sums of values. If causal, keys after a block of queries are not
    counted for this block. The backward pass computes Q Kᵀ again. The state is the KV cache of keys and values.
    """
    blocks = row_blocks(geometry.queries, geometry.keys, geometry.causal)
    product = 2 * sum((end - start) * seen for start, end, seen in blocks) * geometry.inner_dim
    state = FLOAT * geometry.keys * geometry.cached_width() if geometry.causal else None
    return Cost(2 * product, 0, backward_flops=5 * product, state_bytes=state)


@register_attention(
    "entmax",
    title="Entmax (sparse)",
    paper="Peters et al. 2019, arXiv:1905.05702",
    equation="the definition of α-entmax, in place of the softmax",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=True),
    time="n^2 d",
    memory="n d",
    cost=cost,
    implementations=("eager", "tiled"),
    softmax_limit=lambda geometry: Entmax(geometry, Options(alpha=1.0)),
    variants={"sparsemax": {"alpha": 2.0}, "between": {"alpha": 1.25}},
)
class Entmax(Attention[Options]):
    """Attention to all keys with α-entmax in place of softmax. The time is quadratic in the length, and many weights are exactly
    zero.

    Papers: Peters et al. 2019 for α-entmax; Martins and Astudillo 2016 (arXiv:1602.02068) for α = 2; Correia et al. 2019
        (arXiv:1909.00015) for its use in multi-head attention. Correia et al. learn α for each head; here α is one constant.
    Symbols: α → alpha; τ → threshold.
    Differs: if α is 1.5 or 2, the implementation ``eager`` finds the threshold τ by sorting the scores. For other α, and always in
        ``tiled``, Newton's method replaces the paper's bisection. ``tiled`` computes the weights again in the backward pass, and
        has no second derivatives. Everything is computed in float32 or more. A query that sees no valid key gets zeros.
    """

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs from the whole queries × keys matrix of weights. The threshold τ, below which a score gives no
        weight, is found by bisection.
        """
        scores = query @ key.mT / query.shape[-1] ** 0.5
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        return entmax_by_bisection(scores, allowed, self.options.alpha) @ value

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs from the whole queries × keys matrix of weights, most of which are zero."""
        dtype = torch.promote_types(query.dtype, torch.float32)
        with without_autocast(query.device):
            q, k, v = query.to(dtype), key.to(dtype), value.to(dtype)
            scores = q @ (k * query.shape[-1] ** -0.5).mT
            allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
            return (entmax_over_valid(scores, allowed, self.options.alpha) @ v).to(query.dtype)

    def attend_tiled(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs, computed in blocks of queries. If causal, keys after a block of queries are skipped."""
        return entmax_attention(query, key, value, key_valid, self.options.alpha, causal=self.geometry.causal)
