"""FNet: Y = Re F_n V F_D. The Fourier matrices F_n and F_D transform along the length and along the channels; nothing
is learned.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attn_zoo.contract import Attention, Capabilities, Cost, Geometry, NoOptions
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


def cost(geometry: Geometry, options: NoOptions) -> Cost:
    """Return the cost: 0 parameters, and 0 FLOPs, because fast Fourier transforms do not count as matrix products."""
    return Cost(flops=0, parameters=0, backward_flops=0)


@register_attention(
    "fnet",
    title="FNet",
    paper="Lee-Thorp et al. 2022, arXiv:2105.03824",
    equation="Eq. 3",
    options=NoOptions,
    can=Capabilities(causal=False, key_padding=False, cross=False, any_length=True, mixes_heads=True),
    time="n log n d",
    memory="n d",
    cost=cost,
    reads=("value",),
)
class FNet(Attention):
    """Real part of the Fourier transform of the values over all positions and all channels. Nothing is learned.

    Paper: Lee-Thorp et al. 2022, Eq. 3.
    Symbols: F_seq, F_h → the transforms along n and along D = heads · head_dim.
    Differs: transforms are unitary, divided by √(n D), so the output has the scale of the values at every length. The paper's
        transforms are not divided. The transform applies to the layer's values; the paper has no projection. The transform mixes
        the channels of all heads. Padding is unsupported, because a padded position would change every frequency.
    Nature: The mixing is fixed, so no position can look for a token by content.
    """

    def definition(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return Re F_n V F_D as C V C - S V S, where C are the cosines and S the sines of the Fourier matrices."""

        def fourier(size: int) -> tuple[Tensor, Tensor]:
            at = torch.arange(size, device=value.device)
            angle = (at[:, None] * at % size).to(value.dtype) * (2 * math.pi / size)
            return angle.cos() / size**0.5, angle.sin() / size**0.5

        (cos_n, sin_n), (cos_d, sin_d) = fourier(value.shape[2]), fourier(value.shape[1] * value.shape[3])
        tokens = value.transpose(1, 2).flatten(2)
        mixed = cos_n @ tokens @ cos_d - sin_n @ tokens @ sin_d
        return mixed.unflatten(-1, (value.shape[1], -1)).transpose(1, 2)

    def attend(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return the outputs of fast Fourier transforms."""
        (_, heads, _, d), dtype = value.shape, torch.promote_types(value.dtype, torch.float32)
        tokens = value.transpose(1, 2).flatten(2).to(dtype)
        half = torch.fft.rfft2(tokens, norm="ortho").real
        # Re Ŷ[i, c] = Re Ŷ[-i, -c] for real values.
        mirrored = half[..., 1 : (heads * d + 1) // 2].flip(dims=(1, 2)).roll(1, dims=1)
        return torch.cat([half, mirrored], dim=-1).unflatten(-1, (heads, d)).transpose(1, 2).to(value.dtype)
