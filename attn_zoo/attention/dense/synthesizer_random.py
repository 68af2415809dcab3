"""Random Synthesizer: Y = softmax(R) V. The scores R are the same for every input; they are learned, or fixed as drawn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.attention.dense._synthesizer import Synthesizer, synthesizer_cost
from attn_zoo.contract import Capabilities, Cost, Geometry
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options:
    """Options of the random Synthesizer."""

    frozen: bool = False
    """If true, R is drawn once and never trained, as in the paper's fixed random form."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the weighted sums of values. The state holds the values."""
    parameters = 0 if options.frozen else geometry.heads * geometry.keys**2
    scores = Cost(0, parameters, backward_flops=0)
    return synthesizer_cost(geometry, scores, constant=options.frozen)


@register_attention(
    "synthesizer_random",
    title="Synthesizer, random",
    paper="Tay et al. 2020, arXiv:2005.00743",
    equation="Section 3.2, Random Synthesizer",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=False, shorter=True, random_at_build=True),
    time="n^2 d",
    memory="n^2",
    cost=cost,
    reads=("value",),
    variants={"frozen": {"frozen": True}},
)
class RandomSynthesizer(Synthesizer[Options]):
    """Attention with one matrix of scores per head, which is the same for every input. Tokens are not compared with each other.

    Paper: Tay et al. 2020, Section 3.2.
    Symbols: R → scores; N → number of keys of the longest input.
    Differs: R starts from N(0, 1), so scores have a variance of about 1, like q·k / √d for q and k with unit variance. Inputs
        shorter than N use the first rows and columns of R.
    Nature: Weights depend on positions alone, so no position can look for a token by content.
    """

    scores: Float[Tensor, "heads n n"]

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        drawn = torch.randn(geometry.heads, geometry.keys, geometry.keys)
        if options.frozen:
            self.register_buffer("scores", drawn)
        else:
            self.scores = nn.Parameter(drawn)

    def definition(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return softmax(R) V."""
        keys = value.shape[2]
        return self.by_definition(self.scores[None, :, :keys, :keys], value, key_valid)

    def attend(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return softmax(R) V. The weights are computed once for all examples or, with padding, once per example."""
        keys = value.shape[2]
        return self.weigh(self.scores[None, :, :keys, :keys], value, key_valid)
