"""Control: no attention, Y = V. It shows the score of a network in which no position sees another."""

from __future__ import annotations

import torch

from attn_zoo.contract import Attention, Capabilities, Cost, Geometry, NoOptions
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


def cost(geometry: Geometry, options: NoOptions) -> Cost:
    """Return a cost of zero FLOPs, zero parameters and zero bytes of state."""
    state = 0 if geometry.causal else None
    return Cost(flops=0, parameters=0, backward_flops=0, state_bytes=state)


@register_attention(
    "none",
    title="No attention (control)",
    paper="control",
    equation="Y = V",
    options=NoOptions,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
    time="n d",
    memory="n d",
    cost=cost,
    reads=("value",),
    control=True,
)
class NoAttention(Attention):
    """Identity Y = V: the output at each position is its own value.

    Paper: none; a control, which cannot select tokens by content.
    Symbols: none.
    Differs: none.
    """

    def definition(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return the identity matrix times the values."""
        return torch.eye(value.shape[2], dtype=value.dtype, device=value.device) @ value

    def attend(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return a copy of the values, so that writing into the output does not change the values."""
        return value.clone()
