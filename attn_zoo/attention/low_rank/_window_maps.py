"""Projections that map each window of ⌈n / k⌉ tokens to one result: its mean, its maximum or a convolution."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.attention.low_rank._projections import LENGTH_MAPS, LowRankOptions, Projection
from attn_zoo.contract import Geometry, LengthMap
from attn_zoo.contract.length_maps import Pair, resample
from attn_zoo.shapes import Compressed, CompressedValid, Keys, KeyValid


class WindowMap(LengthMap):
    """Base class of maps from each window of ⌈n / k⌉ tokens to one result. If a window holds only padding, its result is masked."""

    def __init__(self, geometry: Geometry, options: LowRankOptions, k: int, heads: Sequence[int], implementation: str) -> None:
        super().__init__(geometry.keys, k, heads)
        self.k, (self.roles, self.copies) = k, options.matrices(len(heads))
        self._cut(geometry.keys)

    def _cut(self, length: int) -> None:
        self.length, self.window = length, math.ceil(length / self.k)
        self.results = math.ceil(length / self.window)

    def windows(self, tokens: Float[Tensor, "*front keys width"], fill: float = 0.0) -> Float[Tensor, "*front r window width"]:
        """Return the tokens split into windows. The last window is filled up with ``fill``."""
        return F.pad(tokens, (0, 0, 0, -tokens.shape[-2] % self.window), value=fill).unflatten(-2, (-1, self.window))

    def valid(self, key_valid: KeyValid) -> CompressedValid:
        """Return a mask that is True for windows that hold a real token."""
        return None if key_valid is None else self.windows(key_valid[..., None]).any(dim=-2)[..., 0]

    def resize(self, length: int) -> None:
        """Change the length, and with it the size of the windows."""
        self._cut(length)


class MeanMap(WindowMap):
    """Map from each window to the mean of its real tokens."""

    def project(self, key: Keys, value: Keys, key_valid: KeyValid) -> tuple[Compressed, Compressed]:
        """Return the means of keys and of values."""
        share = self._share(key, key_valid)[:, None]
        return (self.windows(key) * share).sum(dim=-2), (self.windows(value) * share).sum(dim=-2)

    def compress(self, tokens: Tensor, key_valid: KeyValid) -> Pair:
        """Return the mean of each window twice: for keys and for values."""
        mean = (self.windows(tokens) * self._share(tokens, key_valid)).sum(dim=-2)
        return mean, mean

    def compression_flops(self, length: int, width: int, inputs: int) -> int | None:
        """Return 0 FLOPs, because means are not matrix products. Return None if ``sharing=none`` and the map serves several
        heads."""
        return 0 if self.copies == 1 else None

    def _share(self, tokens: Tensor, key_valid: KeyValid) -> Float[Tensor, "batch r 1 1"]:
        """Return the weight of a real token in the mean of its window. It is applied before summing, so that half precision does
        not overflow.
        """
        real = tokens.new_ones(1, tokens.shape[-2], 1) if key_valid is None else key_valid[..., None].to(tokens.dtype)
        return self.windows(real).sum(dim=-2, keepdim=True).clamp(min=1).reciprocal()


class MaxMap(WindowMap):
    """Map from each window to the maximum of its real tokens. The maximum is not linear, so tokens cannot be compressed before they
    are projected to keys.
    """

    def project(self, key: Keys, value: Keys, key_valid: KeyValid) -> tuple[Compressed, Compressed]:
        """Return the maxima of keys and of values, separately for each channel."""
        return self._highest(key, key_valid), self._highest(value, key_valid)

    def _highest(self, tokens: Tensor, key_valid: KeyValid) -> Tensor:
        if key_valid is not None:
            tokens = tokens.masked_fill(~key_valid[:, None, :, None], -math.inf)
        highest, valid = self.windows(tokens, fill=-math.inf).amax(dim=-2), self.valid(key_valid)
        return highest if valid is None else highest.masked_fill(~valid[:, None, :, None], 0)


class ConvolutionMap(WindowMap):
    """Map by a convolution along the length, which mixes all channels of a head and has no bias. Kernel and stride span one window
    of w = ⌈n / k⌉ tokens.

    ``weight`` has shape (roles, copies, w d, d), where d is head_dim. With two roles, the first is for
    keys and the second for values; with one role, both share it. Each head has its own kernel (copy), or all heads share one.
    Weights are drawn from N(0, 1 / (w d)), so results have the scale of the tokens.
    """

    weight: Float[Tensor, "roles copies taps head_dim"]

    def __init__(self, geometry: Geometry, options: LowRankOptions, k: int, heads: Sequence[int], implementation: str) -> None:
        super().__init__(geometry, options, k, heads, implementation)
        d, taps = geometry.head_dim, self.window * geometry.head_dim
        self.weight = nn.Parameter(torch.randn(self.roles, self.copies, taps, d) * taps**-0.5)

    def project(self, key: Keys, value: Keys, key_valid: KeyValid) -> tuple[Compressed, Compressed]:
        """Return the convolved keys and values."""
        kernels = self.weight.unbind(0)
        return self._convolve(kernels[0], key), self._convolve(kernels[-1], value)

    def _convolve(self, weight: Float[Tensor, "copies taps head_dim"], tokens: Tensor) -> Tensor:
        windows = self.windows(tokens).flatten(3)
        return windows @ weight[0] if len(weight) == 1 else torch.einsum("bhrt,htd->bhrd", windows, weight)

    def project_flops(self, head_dim: int) -> int:
        """Return the FLOPs of the convolutions of keys and of values."""
        return 4 * self.results * self.window * head_dim**2 * len(self.heads)

    @torch.no_grad()
    def resize(self, length: int) -> None:
        """Change the size of the windows, and interpolate the kernels to the new size."""
        super().resize(length)
        taps = self.weight.unflatten(2, (-1, self.weight.shape[3])).movedim(2, -1)
        self.weight = nn.Parameter(resample(taps, self.window).movedim(-1, 2).flatten(2, 3), self.weight.requires_grad)


LENGTH_MAPS |= {Projection.mean: MeanMap, Projection.max: MaxMap, Projection.convolution: ConvolutionMap}
