"""Control: local convolution, yᵢ = Σₜ w_t ∘ v_{i+t}, with separate weights for each channel. It shows the score that neighbouring
tokens alone give.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from attn_zoo.contract import FLOAT, Attention, Capabilities, Cost, Geometry, bounded
from attn_zoo.contract.options import odd
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options:
    """Options of the local convolution."""

    kernel: int = bounded(5, odd("the positions that are summed, the own one included"))
    """Width of the convolution in positions, the position itself included. It must be odd. If causal, the convolution reads the
    position itself and earlier ones only.
    """


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost: 0 FLOPs, because sums of scaled values are not matrix products. The state holds the values that later
    outputs need; a kernel of width 1 needs none.
    """
    held = min(options.kernel, geometry.keys)
    state = FLOAT * held * geometry.cached_width(1) * (options.kernel > 1) if geometry.causal else None
    return Cost(0, options.kernel * geometry.inner_dim, backward_flops=0, state_bytes=state)


@register_attention(
    "convolution",
    title="Local convolution (control)",
    paper="control",
    equation="y_i = sum_t w_t v_(i+t), channel by channel",
    options=Options,
    can=Capabilities(causal=True, key_padding=True, cross=False, any_length=True),
    time="n w d",
    memory="n d",
    cost=cost,
    reads=("value",),
    variants={"one": {"kernel": 1}, "nine": {"kernel": 9}},
    control=True,
)
class LocalConvolution(Attention[Options]):
    """Learned depthwise convolution of the values along the length.

    Paper: none; a control, which cannot select tokens by content.
    Symbols: none.
    Differs: none. Positions before the first and after the last count as zeros, as padded positions do. Weights start from N(0,
        1/kernel), so that the outputs have the scale of the values. There is no bias, so the output is zero if the kernel covers no
        real token.
    """

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.weight = nn.Parameter(torch.randn(geometry.heads, options.kernel, geometry.head_dim) * options.kernel**-0.5)

    def definition(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return the outputs Σₜ w_t ∘ v_{i+t}. Each shift by t positions is an n × n matrix."""
        n, kernel = value.shape[2], self.options.kernel
        at, before = torch.arange(n, device=value.device), kernel - 1 if self.geometry.causal else kernel // 2
        shifts = [(at == at[:, None] + t - before).to(value.dtype) for t in range(kernel)]
        return torch.stack([shift @ value * self.weight[:, t, None] for t, shift in enumerate(shifts)]).sum(dim=0)

    def attend(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return the sum of shifted values, each shift multiplied by its weights. Padded values must be zeros."""
        n, kernel = value.shape[2], self.options.kernel
        before = kernel - 1 if self.geometry.causal else kernel // 2
        filled = F.pad(value, (0, 0, before, kernel - 1 - before)) if kernel > 1 else value
        taps = self.weight.unsqueeze(2).unbind(1)
        out = filled[:, :, :n] * taps[0]
        for t in range(1, kernel):
            out = torch.addcmul(out, filled[:, :, t : t + n], taps[t])
        return out.to(value.dtype)
