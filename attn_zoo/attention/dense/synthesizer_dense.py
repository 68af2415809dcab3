"""Dense Synthesizer: Y = softmax(B) V with Bᵢ = W ReLU(qᵢ) + b. The scores of a token for all positions are computed from this
token alone.
"""

from __future__ import annotations

import math
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
    """Options of the dense Synthesizer."""

    factor: int = bounded(0, at_least(0, "numbers"))
    """Length of the first list in the factorised form; 0 means the plain form. In the factorised form with n keys, each token
    gives this list and a list of ⌈n/factor⌉ numbers. Each score is the product of one number from each list.
    """


def widths(keys: int, options: Options) -> tuple[int, ...]:
    """Return how many numbers are computed from each token: (keys,) if ``factor`` is 0, else (factor, ⌈keys/factor⌉)."""
    return (options.factor, math.ceil(keys / options.factor)) if options.factor else (keys,)


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost of the scores W ReLU(Q) and of the weighted sums of values. The state holds the values."""
    h, n, d = geometry.heads, geometry.queries, geometry.head_dim
    made = sum(widths(geometry.keys, options))
    flops = 2 * h * n * d * made
    return synthesizer_cost(geometry, Cost(flops, h * made * (d + 1), backward_flops=2 * flops))


@register_attention(
    "synthesizer_dense",
    title="Synthesizer, dense",
    paper="Tay et al. 2020, arXiv:2005.00743",
    equation="Section 3.1, Dense Synthesizer",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=True, any_length=False, shorter=True),
    time="n^2 d",
    memory="n^2",
    cost=cost,
    reads=("query", "value"),
    variants={"factorised": {"factor": 5}},
)
class DenseSynthesizer(Synthesizer[Options]):
    """Attention whose scores depend on the query's token and on positions, not on keys. The layer does not project keys. The time
    is quadratic in the length.

    Paper: Tay et al. 2020, Section 3.1. The option ``factor`` gives the factorised dense form of Section 3.3.
    Symbols: F(X) = W₂ ReLU(W₁ X) + b, where W₁ → the layer's query projection, W₂ → weights, b → biases; N → number of keys of the
        longest input.
    Differs: W₁ maps to head_dim and not to the width of the model, so heads cost as much as in softmax attention. In the factorised
        form, a token has one list of f = ``factor`` numbers and one of ⌈N/f⌉ numbers. The score of key j is the product of number
        j mod f of the first list and number ⌊j/f⌋ of the second. W₂ starts from N(0, 2/d) and b from zero, so
        scores have a variance of about 1, like q·k / √d for q and k with unit variance. Inputs shorter than N use the first columns
        of W₂.
    Nature: Weights depend on the query's token and on positions, not on the keys, so no position can look for a token by content.
    """

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        made, d = widths(geometry.keys, options), geometry.head_dim
        self.weights = nn.ParameterList(torch.randn(geometry.heads, d, width) * (2 / d) ** 0.5 for width in made)
        self.biases = nn.ParameterList(torch.zeros(geometry.heads, 1, width) for width in made)

    def definition(self, query: Queries, key: Keys | None, value: Keys, key_valid: KeyValid) -> Queries:
        """Return softmax(B) V, with the scores B computed key by key."""
        hidden, at = query.clamp(min=0), torch.arange(value.shape[2], device=value.device)
        numbers = (at % self.options.factor, at // self.options.factor) if self.options.factor else (at,)
        made = [hidden @ w[..., j] + b[..., j] for w, b, j in zip(self.weights, self.biases, numbers, strict=True)]
        return self.by_definition(torch.stack(made).prod(dim=0), value, key_valid)

    def attend(self, query: Queries, key: Keys | None, value: Keys, key_valid: KeyValid) -> Queries:
        """Return softmax(B) V with Bᵢ = W ReLU(qᵢ) + b. In the factorised form, Bᵢ is the flattened outer product of two such
        vectors.
        """
        hidden, keys, factor = query.relu(), value.shape[2], self.options.factor
        if not factor:
            return self.weigh(self._scores(0, hidden, keys), value, key_valid)
        inner, outer = self._scores(0, hidden, factor), self._scores(1, hidden, math.ceil(keys / factor))
        return self.weigh((outer[..., :, None] * inner[..., None, :]).flatten(-2)[..., :keys], value, key_valid)

    def _scores(self, at: int, hidden: Float[Tensor, "batch heads n head_dim"], width: int) -> Float[Tensor, "batch heads n width"]:
        """Return the scores of factor number ``at``. There is one product per head, so that W is not copied for each example."""
        rows = hidden.transpose(0, 1).flatten(1, 2)
        made = torch.baddbmm(self.biases[at][..., :width], rows, self.weights[at][..., :width])
        return made.unflatten(1, (len(hidden), -1)).transpose(0, 1)
