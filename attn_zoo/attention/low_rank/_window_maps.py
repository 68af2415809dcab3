"""Maps of windows of n / k tokens: mean, max, and convolution (Wang et al. 2020, Section 4)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.attention._kept import FLOAT
from attn_zoo.attention.low_rank._length_maps import LengthMap, MapShape, resample


class WindowMap(LengthMap):
    """Maps every window of n / k tokens, rounded up, to one result; a window of padding alone is left out of the softmax."""

    def windows(self, tokens: Float[Tensor, "*front keys width"], fill: float = 0.0) -> Float[Tensor, "*front r window width"]:
        """Cut into windows, the last one filled up."""
        return F.pad(tokens, (0, 0, 0, -tokens.shape[-2] % self.shape.window), value=fill).unflatten(-2, (-1, self.shape.window))

    def valid(self, key_valid: Tensor | None) -> Tensor | None:
        return None if key_valid is None else self.windows(key_valid[..., None]).any(dim=-2)[..., 0]

    @staticmethod
    def results(shape: MapShape) -> int:
        return math.ceil(shape.length / shape.window)


class MeanMap(WindowMap):
    """Averages over the real tokens of a window."""

    def project(self, key: Tensor, value: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        share = self._share(key, key_valid)[:, None]
        return (self.windows(key) * share).sum(dim=-2), (self.windows(value) * share).sum(dim=-2)

    def compress(self, tokens: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        mean = (self.windows(tokens) * self._share(tokens, key_valid)).sum(dim=-2)
        return mean, mean

    def _share(self, tokens: Tensor, key_valid: Tensor | None) -> Float[Tensor, "batch r 1 1"]:
        """What a real token has in its window's mean; multiplied before summing, so that half precision does not overflow."""
        real = tokens.new_ones(1, tokens.shape[-2], 1) if key_valid is None else key_valid[..., None].to(tokens.dtype)
        return self.windows(real).sum(dim=-2, keepdim=True).clamp(min=1).reciprocal()

    @classmethod
    def kept_bytes(cls, shape: MapShape, *, frozen: bool, copied: bool, kernels: bool) -> int:
        return FLOAT * cls.results(shape)  # the shares, once for keys and values

    @staticmethod
    def compression_flops(shape: MapShape, length: int, width: int, inputs: int) -> int | None:
        return 0 if shape.copies == 1 else None


class MaxMap(WindowMap):
    """Maxima over the real tokens of a window. Not linear, so tokens cannot be compressed before they are keys."""

    keeps_results = True

    def project(self, key: Tensor, value: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._highest(key, key_valid), self._highest(value, key_valid)

    def _highest(self, tokens: Tensor, key_valid: Tensor | None) -> Tensor:
        lowest = -math.inf
        if key_valid is not None:
            tokens = tokens.masked_fill(~key_valid[:, None, :, None], lowest)
        highest = self.windows(tokens, fill=lowest).amax(dim=-2)
        valid = self.valid(key_valid)
        return highest if valid is None else highest.masked_fill(~valid[:, None, :, None], 0)

    @classmethod
    def kept_bytes(cls, shape: MapShape, *, frozen: bool, copied: bool, kernels: bool) -> int:
        return 2 * FLOAT * cls.results(shape) * (shape.window + 1) * shape.heads * shape.head_dim  # windows and maxima


class ConvolutionMap(WindowMap):
    """A convolution with kernel and stride n / k over the channels of a head, without bias.

    ``weight[role, copy]`` is (window · d, d). It starts from N(0, 1 / (window · d)), which keeps the scale.
    """

    weight: Float[Tensor, "roles copies taps head_dim"]

    def __init__(self, shape: MapShape, *, kernels: bool = False) -> None:
        super().__init__(shape, kernels=kernels)
        taps = shape.window * shape.head_dim
        self.weight = nn.Parameter(torch.randn(shape.roles, shape.copies, taps, shape.head_dim) * taps**-0.5)

    def project(self, key: Tensor, value: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        kernels = self.weight.unbind(0)
        return self._convolve(kernels[0], key), self._convolve(kernels[-1], value)

    def _convolve(self, weight: Float[Tensor, "copies taps head_dim"], tokens: Tensor) -> Tensor:
        batch = tokens.shape[0]
        windows = self.windows(tokens).flatten(3)
        if self.shape.copies == 1:
            return windows @ weight[0]
        by_head = windows.transpose(0, 1).flatten(1, 2)
        return torch.bmm(by_head, weight).unflatten(1, (batch, -1)).transpose(0, 1)

    @torch.no_grad()
    def resize(self, length: int) -> None:
        d, before = self.shape.head_dim, self.weight
        super().resize(length)
        taps = before.unflatten(2, (-1, d)).movedim(2, -1)
        taps = resample(taps.flatten(0, 3), self.shape.window).unflatten(0, taps.shape[:-1])
        self.weight = nn.Parameter(taps.movedim(-1, 2).flatten(2, 3), requires_grad=before.requires_grad)

    @staticmethod
    def flops(shape: MapShape) -> int:
        padded = WindowMap.results(shape) * shape.window
        return 4 * padded * shape.head_dim**2 * shape.heads

    @classmethod
    def kept_bytes(cls, shape: MapShape, *, frozen: bool, copied: bool, kernels: bool) -> int:
        windows = 2 * FLOAT * cls.results(shape) * shape.window * shape.heads * shape.head_dim
        return windows if cls.trains(shape, frozen) else 0

    @staticmethod
    def parameter_count(shape: MapShape) -> int:
        return shape.roles * shape.copies * shape.window * shape.head_dim**2
