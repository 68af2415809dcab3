"""Maps along the length, n tokens to r: what makes Linformer's keys few (Wang et al. 2020, Sections 3 and 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.contract import real_tokens


class Projection(Enum):
    """How n tokens become few."""

    learned = "learned"
    """A learned r × n matrix."""
    random = "random"
    """The same matrix as drawn, never trained (Johnson and Lindenstrauss)."""
    mean = "mean"
    """Averages of windows of n / k tokens."""
    max = "max"
    """Maxima of the same windows, channel by channel."""
    convolution = "convolution"
    """A convolution whose kernel and stride are the window, over the channels of a head."""


@dataclass(frozen=True, slots=True)
class MapShape:
    """What a map is made for: ``length`` tokens to ``projected`` or a few less, for ``heads`` heads.

    ``roles`` is 2 where values are mapped in another way than keys, ``copies`` the number of heads
    that have a map of their own: all, or 1 where they share it.
    """

    length: int
    projected: int
    roles: int
    copies: int
    heads: int
    head_dim: int

    @property
    def window(self) -> int:
        """Tokens that a windowed map takes together."""
        return math.ceil(self.length / self.projected)


class LengthMap(nn.Module):
    """A map of keys and values along the length.

    Tokens may be fewer than the map was made for: they then stand at the front and the rest counts
    as padding. Padded tokens hold zeros when they come here. ``kernels`` asks for the Triton kernels
    where there are any.
    """

    def __init__(self, shape: MapShape, *, kernels: bool = False) -> None:
        super().__init__()
        self.shape, self.kernels = shape, kernels

    def project(
        self,
        key: Float[Tensor, "batch heads keys head_dim"],
        value: Float[Tensor, "batch heads keys head_dim"],
        key_valid: Bool[Tensor, "batch keys"] | None,
    ) -> tuple[Float[Tensor, "batch heads r head_dim"], Float[Tensor, "batch heads r head_dim"]]:
        """Map the keys and the values of all heads."""
        raise NotImplementedError

    def compress(
        self, tokens: Float[Tensor, "batch keys dim"], key_valid: Bool[Tensor, "batch keys"] | None
    ) -> tuple[Float[Tensor, "batch r dim"], Float[Tensor, "batch r dim"]]:
        """Map tokens before they are keys and values, where the map is linear, alike in all channels, and shared by heads."""
        raise NotImplementedError

    def compress_and_weigh(
        self, tokens: Float[Tensor, "batch keys dim"], key_valid: Bool[Tensor, "batch keys"] | None
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """``compress``, and what it makes of a one at each real token."""
        return self.compress(tokens, key_valid), self.compress(real_tokens(tokens, key_valid), key_valid)

    def valid(self, key_valid: Bool[Tensor, "batch keys"] | None) -> Bool[Tensor, "batch r"] | None:
        """Which results hold at least one real token; None where all do."""
        return None

    def resize(self, length: int) -> None:
        """Go over to another length in place, weights interpolated."""
        self.shape = replace(self.shape, length=length)

    @staticmethod
    def results(shape: MapShape) -> int:
        """r, the number of results."""
        return shape.projected

    @staticmethod
    def flops(shape: MapShape) -> int:
        """FLOPs to project keys and values of all heads of one example."""
        return 0

    @classmethod
    def backward_flops(cls, shape: MapShape, *, frozen: bool) -> int:
        """FLOPs of the gradients: of the tokens, and as many of the weights where there are any that train."""
        return cls.flops(shape) * (2 if cls.trains(shape, frozen) else 1)

    @classmethod
    def trains(cls, shape: MapShape, frozen: bool) -> bool:
        """Whether there are weights to take a gradient of."""
        return cls.parameter_count(shape) > 0 and not frozen

    @classmethod
    def kept_bytes(cls, shape: MapShape, *, frozen: bool, copied: bool, kernels: bool) -> int:
        """What autograd keeps to map keys and values of one example, in float32; ``copied`` tokens are there for this map only.

        The results are not included, unless they are kept for the map's own sake; see ``keeps_results``.
        """
        return 0

    keeps_results: ClassVar[bool] = False
    """Whether the map itself needs its results in the backward pass."""

    @staticmethod
    def compression_flops(shape: MapShape, length: int, width: int, inputs: int) -> int | None:
        """FLOPs to compress one example, or None where that is impossible."""
        return None

    @staticmethod
    def parameter_count(shape: MapShape) -> int:
        """Number of learned weights."""
        return 0

    def extra_repr(self) -> str:
        return f"{self.shape}"


def resample(rows: Float[Tensor, "rows n"], length: int) -> Float[Tensor, "rows length"]:
    """Rows as functions of the relative position, read at another number of positions: linear upward, averages downward.

    Weights are divided by as much as positions multiply, and each row keeps its sum, so that a slowly varying sequence is
    mapped to what it was.
    """
    before = rows.shape[-1]
    if length >= before:
        finer = F.interpolate(rows[:, None], size=length, mode="linear", align_corners=False)[:, 0]
    else:
        finer = F.interpolate(rows[:, None], size=length, mode="area")[:, 0]
    finer = finer * (before / length)
    return finer + (rows.sum(dim=-1, keepdim=True) - finer.sum(dim=-1, keepdim=True)) / length
