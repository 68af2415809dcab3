"""External attention: Y = A M_v. The weights A are the scores X M_kᵀ of the values X, normalised twice: by a softmax over
positions, then by their sum over units.

A unit is a learned pair of a key in M_k and a value in M_v, the same for all inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from attn_zoo.contract import Attention, Capabilities, Cost, DropoutOptions, Geometry, at_least, share_of_length
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries

UNITS = at_least(
    2,
    "units among which weights are divided",
    advice="A single unit would give every position the same output",
)


@dataclass
class Options(DropoutOptions):
    """Options of external attention."""

    units: int = share_of_length(4, most=64, least=2, bound=UNITS)
    """S, the number of learned memory units. It is 64 in the paper."""
    own_units: bool = False
    """If true, each head has its own units. In the paper, all heads share them."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of X M_kᵀ and A M_v, each n S d multiply-adds per head for S units."""
    h, d, units = geometry.heads, geometry.head_dim, options.units
    flops = 4 * h * geometry.keys * units * d
    return Cost(flops, parameters=2 * (h if options.own_units else 1) * units * d, backward_flops=2 * flops)


@register_attention(
    "external",
    title="External attention",
    paper="Guo et al. 2021, arXiv:2105.02358",
    equation="External attention with double normalisation; its multi-head form",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=False, any_length=True),
    time="n s d",
    memory="n s + n d",
    cost=cost,
    reads=("value",),
    variants={"own_units": {"own_units": True, "units": 5}},
)
class External(Attention[Options]):
    """Attention from each position to a few learned memory units, which are the same for all inputs.

    Paper: Guo et al. 2021: external attention (units as keys and values), the double normalisation of scores (softmax over
        positions, then division by the sum over units), and the multi-head form, whose heads share the units.
    Symbols: F → the layer's values, which replace the paper's query (queries and keys are not computed); S → units; M_k →
        memory_keys, M_v → memory_values; α → weights.
    Differs: padded positions are left out of the softmax over positions. The double normalisation is computed as a single softmax
        over units, of the scores minus their log-sum-exp over positions. This avoids a division by zero. M_k starts from N(0, 1/d)
        and M_v from N(0, 1). There are as many heads as in the layer; the paper's code has four times as many.
    Nature: Positions interact only through one number per unit: the sum over positions that divides the weights. So a position can
        hardly look for a token by content. The copying task is learned slowly (accuracy of 47 % after 650 steps and rising; the
        control ``uniform`` stays at 16 %).
    """

    saturates = (("units", "is at least the number of tokens ({n}), so softmax attention compares a query with no more keys"),)

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        shape = (geometry.heads if options.own_units else 1, options.units, geometry.head_dim)
        self.memory_keys = nn.Parameter(torch.randn(shape) * geometry.head_dim**-0.5)
        self.memory_values = nn.Parameter(torch.randn(shape))

    def definition(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return the outputs by the paper's equation: exponentials of scores are divided by their sums over the valid positions,
        then by their sums over the units.
        """
        powers = (value @ self.memory_keys.mT).exp()
        sums = (powers if key_valid is None else powers * key_valid[:, None, :, None]).sum(dim=2, keepdim=True)
        weights = powers / torch.where(sums > 0, sums, 1)
        return weights / weights.sum(dim=-1, keepdim=True) @ self.memory_values

    def attend(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return the outputs, computed by a single softmax over units. Padded positions get an output, but do not influence other
        outputs.
        """
        own = self.options.own_units
        keys, values = (self.memory_keys, self.memory_values) if own else (self.memory_keys[0], self.memory_values[0])
        scores = (value @ keys.mT).to(torch.promote_types(value.dtype, torch.float32))
        reached = scores
        if key_valid is not None:
            # The lowest finite number, so that an example of padding alone gives no NaN, not even in gradients.
            reached = scores.masked_fill(~key_valid[:, None, :, None], torch.finfo(scores.dtype).min)
        weights = (scores - reached.logsumexp(dim=2, keepdim=True)).softmax(dim=-1)
        weights = F.dropout(weights, self.options.dropout, self.training)
        return (weights.to(value.dtype) @ values).to(value.dtype)
