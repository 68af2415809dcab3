"""Factorised random Synthesizer: Y = softmax(R₁ R₂ᵀ) V. R₁ and R₂ have few columns, are learned or fixed, and do not depend on the
input.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.attention.dense._synthesizer import Synthesizer, synthesizer_cost
from attn_zoo.contract import Capabilities, Cost, Geometry, at_least, bounded
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options:
    """Options of the factorised random Synthesizer."""

    rank: int = bounded(8, at_least(1, "numbers"))
    """k, the number of columns of R₁ and R₂. It is 8 in the paper."""
    frozen: bool = False
    """If true, R₁ and R₂ are drawn once and never trained."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the scores R₁ R₂ᵀ of all heads, and of the weighted sums of values. The state holds the values."""
    h, n, k = geometry.heads, geometry.keys, options.rank
    flops = 2 * h * n * n * k
    scores = Cost(
        flops,
        parameters=0 if options.frozen else 2 * h * n * k,
        backward_flops=0 if options.frozen else 2 * flops,
    )
    return synthesizer_cost(geometry, scores, constant=options.frozen)


@register_attention(
    "synthesizer_factorised",
    title="Synthesizer, factorised random",
    paper="Tay et al. 2020, arXiv:2005.00743",
    equation="Section 3.3, Factorized Random Synthesizer",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=False, shorter=True, random_at_build=True),
    time="n^2 k + n^2 d",
    memory="n^2",
    cost=cost,
    reads=("value",),
    variants={"frozen": {"frozen": True}, "rank_3": {"rank": 3}},
)
class FactorisedSynthesizer(Synthesizer[Options]):
    """Random Synthesizer whose scores are the product R₁ R₂ᵀ of two n × k matrices. It has 2 n k parameters per head instead of n².
    The time stays quadratic in the length.

    Paper: Tay et al. 2020, Section 3.3. The factorised dense form is ``synthesizer_dense`` with the option ``factor``.
    Symbols: R₁, R₂ → left, right; k → rank; N → number of keys of the longest input.
    Differs: R₁ and R₂ start from N(0, 1/√k), so scores have a variance of about 1, like q·k / √d for q and k with unit variance.
        Inputs shorter than N use the first rows of R₁ and R₂.
    Nature: Weights depend on positions alone, so no position can look for a token by content.
    """

    left: Float[Tensor, "heads n rank"]
    right: Float[Tensor, "heads n rank"]

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        for name in ("left", "right"):
            drawn = torch.randn(geometry.heads, geometry.keys, options.rank) * options.rank**-0.25
            if options.frozen:
                self.register_buffer(name, drawn)
            else:
                setattr(self, name, nn.Parameter(drawn))

    def definition(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return softmax(B) V, where the scores B = R₁ R₂ᵀ are added up from ``rank`` outer products."""
        keys = value.shape[2]
        left, right = self.left[:, :keys].unbind(dim=-1), self.right[:, :keys].unbind(dim=-1)
        scores = torch.stack([x[:, :, None] * y[:, None] for x, y in zip(left, right, strict=True)]).sum(dim=0)
        return self.by_definition(scores[None], value, key_valid)

    def attend(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return softmax(R₁ R₂ᵀ) V. The weights are computed once for all examples or, with padding, once per example."""
        keys = value.shape[2]
        return self.weigh((self.left[:, :keys] @ self.right[:, :keys].mT)[None], value, key_valid)
