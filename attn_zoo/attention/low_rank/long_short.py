"""Long-short: Y = softmax(Q [K_near ; PᵀK]ᵀ / √d) [V_near ; PᵀV], where the projection P = softmax(K W) is normalised over
positions.

K_near are the keys of a window around the query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.attention.low_rank._window import Few, attend_near, naive_attention, within
from attn_zoo.contract import Attention, Capabilities, Cost, DropoutOptions, Geometry, softmax_over_valid
from attn_zoo.contract.options import WIDE, at_least, share_of_length, window_by_length
from attn_zoo.kernels.cpu.window import band_flops
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries

RANK = at_least(1, "projected keys", advice="Use attention=longformer with global_tokens=0 for a window alone")


@dataclass
class Options(DropoutOptions):
    """Options of long-short attention."""

    window: int = window_by_length()
    """Number of keys in the window around a query, the query's own position included. It must be odd."""
    rank: int = share_of_length(8, most=64, bound=RANK)
    """r, the number of projected keys."""
    norms: bool = True
    """If true, the keys and values of the window get one layer norm, and the projected ones another, so that both have the same
    scale.
    """


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of K W, PᵀK and PᵀV (with P = softmax(K W)), each n r d multiply-adds per head, and of
    attention to the window and to the projected keys.
    """
    n, h, d, r = geometry.keys, geometry.heads, geometry.head_dim, options.rank
    reach = min(options.window // 2, n - 1)
    forward, backward = band_flops(n, reach, reach, extra=r)
    flops = h * d * (6 * n * r + forward)
    return Cost(flops, h * d * (r + 4 * options.norms), backward_flops=h * d * (12 * n * r + backward))


@register_attention(
    "long_short",
    title="Long-short (Transformer-LS)",
    paper="Zhu et al. 2021, arXiv:2107.02192",
    equation="Section 3.2 to 3.4",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=False, any_length=True),
    time="n w d + n r d",
    memory="n w + n r + n d",
    cost=cost,
    implementations=("eager", "tiled"),
    variants={"plain": {"norms": False, "window": 5, "rank": 3}, "wide": {"window": 65, "rank": 8}},
)
class LongShort(Attention[Options]):
    """Softmax attention to a window of keys, and to r projected keys. The projection depends on the input (dynamic projection).

    Paper: Zhu et al. 2021: Section 3.2 (sliding window), Section 3.3 (dynamic projection P = softmax(K W)), Section 3.4 (one
        softmax over window and projected keys, with two layer norms).
    Symbols: r → rank, W^P → projection, LN_L and LN_G → rows 0 and 1 of gain and shift.
    Differs: there is only the bidirectional form. P is computed from the keys of a head; the paper computes it from the tokens
        before they are projected. Each position has its own window; in the paper the positions of a segment share a window of two
        segments. Norms run over the channels of a head. P is zero at padded keys.
    """

    saturates = (*WIDE, ("rank", "is at least the number of tokens ({n}), so nothing is compressed"))

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        h, d = geometry.heads, geometry.head_dim
        self.projection = nn.Parameter(torch.randn(h, options.rank, d) * d**-0.5)
        if options.norms:
            self.gain = nn.Parameter(torch.ones(2, h, 1, d))
            self.shift = nn.Parameter(torch.zeros(2, h, 1, d))

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of one softmax over the r projected keys and all n keys. Keys outside the window are masked."""
        shares = self._shares(key, key_valid)
        near = within(query.shape[2], self.options.window // 2, key_valid, query.device)
        few = Few(self._norm(shares @ key, 1), self._norm(shares @ value, 1))
        return naive_attention(query, self._norm(key, 0), self._norm(value, 0), near, few)

    def attend(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs of one softmax over the projected keys PᵀK and the window."""
        shares = self._shares(key, key_valid)
        few = Few(self._norm(shares @ key, 1), self._norm(shares.to(value.dtype) @ value, 1))
        how: dict[str, Any] = {"window": self.options.window, "dropout": self.dropout_rate, "tiled": self.implementation == "tiled"}
        return attend_near(query, self._norm(key, 0), self._norm(value, 0), key_valid, few, **how)

    attend_tiled = attend

    def _shares(self, key: Keys, key_valid: KeyValid) -> Float[Tensor, "batch heads r keys"]:
        """Compute Pᵀ, the softmax of K W over positions."""
        allowed = None if key_valid is None else key_valid[:, None, None]
        return softmax_over_valid(self.projection.to(key.dtype) @ key.mT, allowed).to(key.dtype)

    def _norm(self, x: Keys, which: int) -> Keys:
        """Apply the layer norm of near (0) or projected (1) keys and values. Without norms, return ``x`` unchanged."""
        if not self.options.norms:
            return x
        return (F.layer_norm(x, x.shape[-1:]) * self.gain[which] + self.shift[which]).to(x.dtype)
