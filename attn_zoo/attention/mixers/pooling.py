"""Mixer of PoolFormer: yᵢ is the mean of vⱼ over |j - i| ≤ ⌊w/2⌋, minus vᵢ, where w is the width of the window."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.contract import Attention, Capabilities, Cost, Geometry, bounded
from attn_zoo.contract.options import odd
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries

WIDTH = odd("the averaged positions, the own one included", 3, advice=", or use attention=none for no neighbours")


@dataclass
class Options:
    """Options of pooling."""

    window: int = bounded(3, WIDTH)
    """Width of the window in positions, the position itself included. It must be odd."""


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost: 0 FLOPs, because averages are sums and not matrix products."""
    return Cost(flops=0, parameters=0, backward_flops=0)


@register_attention(
    "pooling",
    title="Pooling (PoolFormer)",
    paper="Yu et al. 2022, arXiv:2111.11418",
    equation="Pooling as token mixer (Algorithm 1)",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=False, any_length=True),
    time="n w d",
    memory="n d",
    cost=cost,
    reads=("value",),
    variants={"wide": {"window": 9}},
)
class Pooling(Attention[Options]):
    """Average of the values of a position and its neighbours, minus the value of the position itself. Nothing is learned.

    Paper: Yu et al. 2022, Algorithm 1; the subtraction compensates for the surrounding residual connection.
    Symbols: K → window, T → the layer's values.
    Differs: the window runs along one dimension; the paper's K × K window lies over an image. The layer projects values and
        outputs, as for every mechanism; the paper's mixer has no projections. Averages are over the real tokens in the window; in
        the paper, over the positions inside the image.
    Nature: In each layer, a position sees only its window, with equal weights. Tokens beyond a few positions are neither recalled
        nor copied.
    """

    saturates = (("window", "is at least the number of tokens ({n}), so it averages nearly all of them"),)

    def definition(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return the outputs from n × n weights: equal shares for the real tokens within the window, minus the identity matrix."""
        at = torch.arange(value.shape[2], device=value.device)
        near = ((at - at[:, None]).abs() <= self.options.window // 2).to(value.dtype)
        near = near if key_valid is None else near * key_valid[:, None, None]
        return near / near.sum(dim=-1, keepdim=True).clamp(min=1) @ value - value

    def attend(self, query: Queries | None, key: Keys | None, value: Keys, key_valid: KeyValid) -> Keys:
        """Return the means of the real tokens in each window, minus the values. Padded values must be zeros."""
        if key_valid is None:
            return self._pooled(value, whole=False) - value
        share = self._pooled(key_valid[:, None, :, None].to(value.dtype), whole=True)
        return self._pooled(value, whole=True) / share.clamp(min=1 / self.options.window) - value

    def _pooled(self, x: Float[Tensor, "batch _ n _"], *, whole: bool) -> Float[Tensor, "batch _ n _"]:
        """Return the sums over windows, divided by the width of the window (``whole``), or by the part of it inside the
        sequence.
        """
        window = self.options.window
        return F.avg_pool2d(x, (window, 1), stride=1, padding=(window // 2, 0), count_include_pad=whole)
