"""Base class of the synthesizers (Tay et al. 2020): Y = softmax(B) V, with scores B that do not depend on keys."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.contract import FLOAT, Attention, Cost, Geometry, OptionsT, allowed_pairs, softmax_over_valid
from attn_zoo.shapes import Keys, KeyValid, Queries


def synthesizer_cost(geometry: Geometry, scores: Cost, *, constant: bool = False) -> Cost:
    """Return the cost of a synthesizer: the cost of computing its scores, plus the cost of the weighted sums of values. The state
    holds the values.

    Args:
        scores: cost of computing the scores.
        constant: True if the scores get no gradient.
    """
    inner = geometry.inner_dim
    product = 2 * geometry.queries * geometry.keys * inner
    return Cost(
        flops=scores.flops + product,
        parameters=scores.parameters,
        backward_flops=(scores.backward_flops or 0) + (1 if constant else 2) * product,
        state_bytes=FLOAT * geometry.keys * geometry.cached_width(1) if geometry.causal else None,
    )


class Synthesizer(Attention[OptionsT]):
    """Base class of attention whose scores do not depend on keys. Subclasses implement ``attend``."""

    def weigh(self, scores: Float[Tensor, "#batch heads queries keys"], value: Keys, key_valid: KeyValid) -> Queries:
        """Return softmax(B) V over the valid keys and, if causal, without later keys. There is one matrix of scores B per example,
        or one for all examples.
        """
        allowed = allowed_pairs(scores, value, key_valid, causal=self.geometry.causal)
        weights = softmax_over_valid(scores, allowed).to(value.dtype)
        if len(weights) == 1:  # one B for all examples: a single product, so that weights are not copied for each
            side_by_side = value.permute(1, 2, 0, 3).flatten(2)
            return (weights[0] @ side_by_side).unflatten(-1, (len(value), -1)).permute(2, 0, 1, 3)
        return weights @ value

    def by_definition(self, scores: Float[Tensor, "#batch heads queries keys"], value: Keys, key_valid: KeyValid) -> Queries:
        """Return exp(B) V, divided by the sums of exp(B) over the keys, where B are the scores. Padded keys and, if causal, later
        keys are left out.
        """
        powers, allowed = scores.exp(), allowed_pairs(scores, value, key_valid, causal=self.geometry.causal)
        powers = powers if allowed is None else powers * allowed
        total = powers.sum(dim=-1, keepdim=True)
        return (powers / torch.where(total > 0, total, 1)) @ value
