"""Maps along the length, n tokens to r: what makes Linformer's keys few (Wang et al. 2020, Sections 3 and 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.attention.blocks import CHEAP_BYTES
from attn_zoo.contract import real_tokens

FEW = 4
"""Examples of which each is worth a matrix product of its own."""


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


class LearnedMap(LengthMap):
    """E and F as dense matrices: ``weight[0]`` is E, ``weight[-1]`` is F, each (copies, r, n).

    They start from N(0, 1/n), so that keys and values keep their scale.
    """

    weight: Float[Tensor, "roles copies r n"]

    def __init__(self, shape: MapShape, *, kernels: bool = False) -> None:
        super().__init__(shape, kernels=kernels)
        self._hold(torch.randn(shape.roles, shape.copies, shape.projected, shape.length) * shape.length**-0.5)

    def _hold(self, weight: Tensor) -> None:
        self.weight = nn.Parameter(weight)

    def project(self, key: Tensor, value: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        matrices = self.weight[..., : key.shape[2]].unbind(0)
        return self._of_heads(matrices[0], key, key_valid), self._of_heads(matrices[-1], value, key_valid)

    def _of_heads(self, weight: Float[Tensor, "copies r keys"], tokens: Tensor, key_valid: Tensor | None) -> Tensor:
        batch, heads, keys, head_dim = tokens.shape
        if self.shape.copies == 1:
            side_by_side = tokens.transpose(1, 2).reshape(batch, keys, heads * head_dim)
            return self._product(weight[0], side_by_side, key_valid).unflatten(-1, (heads, head_dim)).transpose(1, 2)
        if self.kernels:
            return self._product(weight, tokens, key_valid)
        # One product a head for the whole batch, so that no weight is copied for each example.
        by_head = tokens.permute(1, 2, 0, 3).reshape(heads, keys, batch * head_dim)
        return torch.bmm(weight, by_head).unflatten(-1, (batch, head_dim)).permute(2, 0, 1, 3)

    def compress(self, tokens: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._for_each_role(self._product(self._stacked(tokens.shape[1]), tokens, key_valid))

    def compress_and_weigh(self, tokens: Tensor, key_valid: Tensor | None) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        stacked = self._stacked(tokens.shape[1])
        real = tokens.new_ones(1, tokens.shape[1]) if key_valid is None else key_valid.to(tokens.dtype)
        if self.kernels:
            both, masses = self._product(stacked, tokens, key_valid), real @ stacked.mT
        else:
            both, masses = mix(stacked, tokens, real)
        return self._for_each_role(both), self._for_each_role(masses[..., None])

    def _product(self, weight: Float[Tensor, "*heads r keys"], tokens: Tensor, key_valid: Tensor | None) -> Tensor:
        if self.kernels:
            from attn_zoo.kernels.linformer import project_sequence

            return project_sequence(weight, tokens, key_valid)
        return mix(weight, tokens)[0]

    def _stacked(self, keys: int) -> Float[Tensor, "rows keys"]:
        """E and F one below the other, so that tokens are read once; a view, so that the gradient is not copied."""
        stacked = self.weight.flatten(0, 2)
        return stacked[:, :keys] if keys < self.shape.length else stacked

    def _for_each_role(self, both: Float[Tensor, "*batch rows width"]) -> tuple[Tensor, Tensor]:
        k = self.shape.projected
        return both[..., :k, :], both[..., -k:, :]

    @torch.no_grad()
    def resize(self, length: int) -> None:
        weight = resample(self.weight.flatten(0, 2), length).unflatten(0, self.weight.shape[:3])
        self._replace(weight)
        super().resize(length)

    def _replace(self, weight: Tensor) -> None:
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)

    @staticmethod
    def flops(shape: MapShape) -> int:
        return 4 * shape.projected * shape.length * shape.heads * shape.head_dim

    @staticmethod
    def compression_flops(shape: MapShape, length: int, width: int, inputs: int) -> int | None:
        return 2 * max(shape.roles, inputs) * shape.projected * length * width if shape.copies == 1 else None

    @staticmethod
    def parameter_count(shape: MapShape) -> int:
        return shape.roles * shape.copies * shape.projected * shape.length


class RandomMap(LearnedMap):
    """The same matrices as a buffer: part of the state, never trained."""

    def _hold(self, weight: Tensor) -> None:
        self.register_buffer("weight", weight)

    def _replace(self, weight: Tensor) -> None:
        self.weight = weight

    @staticmethod
    def parameter_count(shape: MapShape) -> int:
        return 0


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
        count = self._count(key, key_valid)[:, None]
        return self.windows(key).sum(dim=-2) / count, self.windows(value).sum(dim=-2) / count

    def compress(self, tokens: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        mean = self.windows(tokens).sum(dim=-2) / self._count(tokens, key_valid)
        return mean, mean

    def _count(self, tokens: Tensor, key_valid: Tensor | None) -> Float[Tensor, "batch r 1"]:
        real = tokens.new_ones(1, tokens.shape[-2], 1) if key_valid is None else key_valid[..., None].to(tokens.dtype)
        return self.windows(real).sum(dim=-2).clamp(min=1)

    @staticmethod
    def compression_flops(shape: MapShape, length: int, width: int, inputs: int) -> int | None:
        return 0 if shape.copies == 1 else None


class MaxMap(WindowMap):
    """Maxima over the real tokens of a window. Not linear, so tokens cannot be compressed before they are keys."""

    def project(self, key: Tensor, value: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        return self._highest(key, key_valid), self._highest(value, key_valid)

    def _highest(self, tokens: Tensor, key_valid: Tensor | None) -> Tensor:
        lowest = -math.inf
        if key_valid is not None:
            tokens = tokens.masked_fill(~key_valid[:, None, :, None], lowest)
        highest = self.windows(tokens, fill=lowest).amax(dim=-2)
        valid = self.valid(key_valid)
        return highest if valid is None else highest.masked_fill(~valid[:, None, :, None], 0)


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

    @staticmethod
    def parameter_count(shape: MapShape) -> int:
        return shape.roles * shape.copies * shape.window * shape.head_dim**2


LENGTH_MAPS: dict[Projection, type[LengthMap]] = {
    Projection.learned: LearnedMap,
    Projection.random: RandomMap,
    Projection.mean: MeanMap,
    Projection.max: MaxMap,
    Projection.convolution: ConvolutionMap,
}


def mix(
    weight: Float[Tensor, "r keys"], tokens: Float[Tensor, "batch keys width"], real: Float[Tensor, "some keys"] | None = None
) -> tuple[Float[Tensor, "batch r width"], Float[Tensor, "some r"]]:
    """``weight @ tokens`` and ``real @ weight.mT``, under autocast in its type."""
    device = tokens.device.type
    dtype = torch.get_autocast_dtype(device) if device != "meta" and torch.is_autocast_enabled(device) else tokens.dtype
    real = tokens.new_empty(0, tokens.shape[1]) if real is None else real
    return _Mix.apply(weight.to(dtype), tokens.to(dtype), real.to(dtype))


class _Mix(torch.autograd.Function):
    """One matrix on the length of every example, and on rows besides.

    The matrix may be the largest tensor there is. PyTorch's own gradient of it is one for each example and each use,
    added up afterwards; this one is made once.
    """

    @staticmethod
    def forward(weight: Tensor, tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        return _on_each(weight, tokens), real @ weight.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (weight, tokens, real), (mixed, masses) = ctx.saved_tensors, gradients
        of_weight = of_tokens = None
        if ctx.needs_input_grad[0]:
            if len(tokens) > FEW and tokens.numel() * tokens.element_size() <= CHEAP_BYTES:
                of_weight = torch.einsum("brd,bnd->rn", mixed, tokens)  # one product over tokens in another order
            else:
                of_weight = mixed[0] @ tokens[0].mT
                for b in range(1, len(tokens)):
                    of_weight.addmm_(mixed[b], tokens[b].mT)
            of_weight = of_weight.addmm_(masses.mT, real) if len(real) else of_weight
        if ctx.needs_input_grad[1]:
            of_tokens = _on_each(weight.mT, mixed)
        return of_weight, of_tokens, None


def _on_each(matrix: Tensor, batch: Tensor) -> Tensor:
    """``matrix @ batch``, which PyTorch would compute as one product of another layout and then copy."""
    return (matrix @ batch[0])[None] if len(batch) == 1 else torch.bmm(matrix.expand(len(batch), -1, -1), batch)


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
