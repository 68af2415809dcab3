"""Based: linear attention with the weights 1 + x + x² / 2, where x = q·k / √f over f channels of a head. The weights are the Taylor
polynomial of exp(x).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.attention.linear._sums_cost import eager_cost
from attn_zoo.attention.linear.linear import Linear
from attn_zoo.contract import Capabilities, Cost, Geometry, allowed_pairs, by_length, weighted_mean
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options:
    """Options of Based."""

    channels: int = by_length("min(16, d, √n)", lambda g: min(16, g.head_dim, math.isqrt(g.keys)))
    """f, the number of channels of queries and keys that are compared: the first f of a head, or all if a head has fewer."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of linear attention with as many features per head as ``Based.features`` returns."""
    return eager_cost(geometry, Based.features(geometry, options))


@register_attention(
    "based",
    title="Based (Taylor map)",
    paper="Arora et al. 2024, arXiv:2402.18668",
    equation="linear attention with the second-order Taylor map",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=True, stepwise=True),
    time="n f^2 d",
    memory="n f^2 + n d",
    cost=cost,
    variants={"narrow": {"channels": 3}},
)
class Based(Linear):
    """Linear attention whose weights are the second-order Taylor polynomial of the exponential in softmax. These weights are at
    least 1/2.

    Paper: Arora et al. 2024, the Taylor map. The paper's model alternates these layers with layers of sliding-window attention,
        here written ``attention=based+longformer``.
    Symbols: d' → channels (f); φ → phi; S and Z → MemoryState.summed, whose last column is Z.
    Differs: queries and keys have as many channels as values, but only the first f channels are compared. This equals a projection
        to f channels. The equal products xᵢxⱼ and xⱼxᵢ become one feature, multiplied by √2, so the state is about half as large as
        the paper's. No epsilon is added to the sum of weights. Features of padded keys are zero.
    Nature: With more compared channels, the weights can be sharper, but the state grows with f².
    """

    @staticmethod
    def features(geometry: Geometry, options: Options) -> int:
        """Return the number of features of a head: 1 + f + f (f + 1) / 2, for f compared channels."""
        f = min(options.channels, geometry.head_dim)
        return 1 + f + f * (f + 1) // 2

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs from the n × n weights 1 + x + x² / 2 with x = q·k / √f over f channels. The weights of each query are
        divided by their sum.
        """
        query, key = (x[..., : self.options.channels] for x in (query, key))
        x = query @ key.mT / query.shape[-1] ** 0.5
        weights = 1 + x + x**2 / 2
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        weights = weights if allowed is None else weights * allowed
        return weighted_mean(weights @ value, weights.sum(dim=-1, keepdim=True))

    def phi(self, x: Keys, valid: KeyValid = None, start: int = 0) -> Float[Tensor, "batch heads keys m"]:
        """Return the features [1, x, xᵢxⱼ for i < j, xᵢ² / √2] of queries or keys, where x are the first f channels of a head,
        divided by f^¼. Features of padded tokens are zero.
        """
        x = x[..., : self.options.channels]
        x = x * x.shape[-1] ** -0.25
        i, j = torch.triu_indices(x.shape[-1], x.shape[-1], 1, device=x.device)
        phi = torch.cat([torch.ones_like(x[..., :1]), x, x[..., i] * x[..., j], x.square() * 0.5**0.5], dim=-1)
        return phi if valid is None else phi * valid[:, None, :, None]
