"""Control: frozen random attention, yᵢ = Σₗ wᵢₗ v_{jᵢₗ} over a few positions j. Positions and weights are drawn once and never
trained. It shows the score that mixing of tokens alone gives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, Geometry, at_least, bounded
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options:
    """Options of frozen random attention."""

    links: int = bounded(8, at_least(1, "positions, the own one included"))
    """Number of positions whose values a position averages: itself, and others that are drawn at random, with repetitions."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost: 0 parameters, and 0 FLOPs, because sums of scaled values are not matrix products.

    The state holds the current value, and the earlier values that later positions link to. The largest possible state is counted.
    """
    # After t of n positions, later positions link to at most t earlier values per head of values, and to at most r (n - t), where
    # r is links - 1 times the heads that read this head. The smaller limit is largest at n - t = n / (r + 1).
    readers = geometry.inner_dim // (geometry.head_dim if geometry.latent_dim else geometry.key_value_dim)
    held = geometry.keys - math.ceil(geometry.keys / (readers * (options.links - 1) + 1)) + 1
    state = FLOAT * held * geometry.cached_width(1) if geometry.causal else None
    return Cost(flops=0, parameters=0, backward_flops=0, state_bytes=state)


@register_attention(
    "frozen_random",
    title="Frozen random attention (control)",
    paper="control",
    equation="y_i = sum_l w_il v_(j_il), j and w drawn once",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=False, shorter=True, random_at_build=True),
    time="n l d",
    memory="n l + n d",
    cost=cost,
    reads=("value",),
    variants={"two": {"links": 2}},
    control=True,
)
class FrozenRandom(Attention[Options]):
    """Weighted average of the values of a few random positions. Positions and weights differ between heads. They are drawn when the
    mechanism is built, and never trained.

    Paper: none; a control, which cannot select tokens by content. A position always links to itself. Its other links are drawn from
        all positions or, if causal, from those up to itself. Weights are positive with sum one (uniform on the simplex).
    Symbols: none.
    Differs: none. Links to padding are left out, and the other weights are scaled to a sum of one. Links are drawn for the length
        for which the mechanism is built, and shorter inputs count as padded. So the outputs of an example do not depend on how far
        it is padded.
    """

    sources: Int[Tensor, "links heads_n"]
    weights: Float[Tensor, "links heads n"]

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        heads, n = geometry.heads, geometry.keys
        at = torch.arange(n)
        reach = at + 1 if geometry.causal else torch.full((n,), n)
        drawn = (torch.rand(options.links - 1, heads, n, dtype=torch.float64) * reach).long()
        chosen = torch.cat([at.expand(1, heads, n), drawn])
        self.register_buffer("sources", (chosen + n * torch.arange(heads)[:, None]).flatten(1))  # one row for all heads
        self.register_buffer("weights", torch.empty(options.links, heads, n).exponential_())  # uniform once normalised

    def definition(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return the values multiplied by the n × n weights of each head. The weights of each position are first divided by their
        sum over the real tokens.
        """
        (_, heads, n, _), built = value.shape, self.geometry.keys
        at = self.sources.unflatten(1, (heads, built)) - built * torch.arange(heads, device=value.device)[:, None]
        matrix = torch.zeros(heads, built, built, dtype=value.dtype, device=value.device)
        matrix = matrix.scatter_add(-1, at.movedim(0, -1), self.weights.movedim(0, -1).to(value.dtype))[:, :n, :n]
        matrix = matrix[None] if key_valid is None else matrix * key_valid[:, None, None]
        return matrix / matrix.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(value.dtype).tiny) @ value

    def attend(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return the weighted sum of the values to which each position links."""
        (batch, heads, n, _), built = value.shape, self.geometry.keys
        weights = self.weights.to(value.dtype)[:, None]
        if key_valid is None and n < built:
            key_valid = torch.ones(batch, n, dtype=torch.bool, device=value.device)
        if key_valid is not None:
            weights = weights * self._real(F.pad(key_valid, (0, built - n)))
        flat = F.pad(value, (0, 0, 0, built - n)).flatten(1, 2)
        out = torch.zeros_like(value)
        for source, weight in zip(self.sources, weights, strict=True):
            seen = flat.index_select(1, source).unflatten(1, (heads, built))
            out = out + seen[:, :, :n] * weight[:, :, :n, None]
        total = weights.sum(dim=0)[:, :, :n, None]
        return out / total.clamp(min=torch.finfo(total.dtype).tiny)

    def _real(self, valid: Bool[Tensor, "batch n"]) -> Bool[Tensor, "links batch heads n"]:
        """Return the mask of links that do not lead to padding."""
        heads, n = self.geometry.heads, self.geometry.keys
        return valid.repeat(1, heads)[:, self.sources].unflatten(-1, (heads, n)).movedim(1, 0)
