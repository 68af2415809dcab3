"""Control: uniform average, yᵢ = mean of the values that position i may see. It shows the score of equal weights, without a choice
by content.
"""

from __future__ import annotations

import torch

from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, Geometry, NoOptions, allowed_pairs, softmax_over_valid
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


def cost(geometry: Geometry, options: NoOptions) -> Cost:
    """Return the cost: 0 FLOPs, because averages are sums and not matrix products. The state is the running sum."""
    state = FLOAT * geometry.key_value_dim if geometry.causal else None
    return Cost(flops=0, parameters=0, backward_flops=0, state_bytes=state)


@register_attention(
    "uniform",
    title="Uniform average (control)",
    paper="control",
    equation="y_i = mean_j v_j",
    options=NoOptions,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
    time="n d",
    memory="n d",
    cost=cost,
    reads=("value",),
    control=True,
)
class UniformAverage(Attention):
    """Uniform average: yᵢ is the mean of vⱼ over the valid positions j (causal: over j ≤ i).

    Paper: none; a control, which cannot select tokens by content. It is softmax attention with every score equal.
    Symbols: none.
    Differs: none.
    """

    def definition(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return softmax attention with all scores zero, over the valid positions (causal: over those up to i)."""
        scores = value.new_zeros(1, 1, value.shape[2], value.shape[2])
        return softmax_over_valid(scores, allowed_pairs(value, value, key_valid, causal=self.geometry.causal)) @ value

    def attend(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return the sum of the valid values (causal: up to each position), divided by their number."""
        wide = value.to(torch.promote_types(value.dtype, torch.float32))  # sums of 16 bits overflow
        valid = torch.ones_like(wide[:, :1, :, :1]) if key_valid is None else key_valid[:, None, :, None].to(wide.dtype)
        if self.geometry.causal:
            return (wide.cumsum(dim=2) / valid.cumsum(dim=2).clamp(min=1)).to(value.dtype)
        mean = wide.sum(dim=2, keepdim=True) / valid.sum(dim=2, keepdim=True).clamp(min=1)
        return mean.to(value.dtype).expand_as(value).clone()
