"""E and F as matrices, learned or random: E X, and how to take its gradient without making one for each example."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attn_zoo.attention._kept import FLOAT
from attn_zoo.attention.low_rank._length_maps import LengthMap, MapShape, resample
from attn_zoo.kernels.cpu._tiling import CHEAP_BYTES

FEW = 4
"""Examples of which each is worth a matrix product of its own."""


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
        if self.kernels:
            both, masses = self._product(stacked, tokens, key_valid), _weigh(stacked, key_valid)
        else:
            both, masses = mix(stacked, tokens, key_valid, weigh=True)
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

    @classmethod
    def kept_bytes(cls, shape: MapShape, *, frozen: bool, copied: bool, kernels: bool) -> int:
        tokens = 2 * FLOAT * shape.length * shape.heads * shape.head_dim
        if (kernels or shape.copies > 1) and not cls.trains(shape, frozen):  # kept for the sake of the weights only
            return 0
        if shape.copies > 1:  # read in place
            return tokens if copied else 0
        side_by_side = shape.heads > 1 and shape.head_dim > 1 and shape.length > 1  # which is no mere view
        return tokens if copied or side_by_side else 0

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


def mix(
    weight: Float[Tensor, "r keys"],
    tokens: Float[Tensor, "batch keys width"],
    key_valid: Bool[Tensor, "batch keys"] | None = None,
    *,
    weigh: bool = False,
) -> tuple[Float[Tensor, "batch r width"], Float[Tensor, "some r"]]:
    """``weight @ tokens``, and if asked for what ones at the real tokens become; under autocast in its type."""
    device, dtype = tokens.device.type, tokens.dtype
    if device != "meta" and torch.is_autocast_enabled(device) and dtype is not torch.float64:  # autocast leaves float64 alone
        dtype = torch.get_autocast_dtype(device)
    return _Mix.apply(weight.to(dtype), tokens.to(dtype), key_valid, weigh)


def _weigh(weight: Float[Tensor, "r keys"], key_valid: Bool[Tensor, "batch keys"] | None) -> Float[Tensor, "some r"]:
    """One row where all tokens are real, for that is a mere sum."""
    return weight.sum(dim=-1)[None] if key_valid is None else key_valid.to(weight.dtype) @ weight.mT


class _Mix(torch.autograd.Function):
    """One matrix on the length of every example, and on rows besides.

    The matrix may be the largest tensor there is. PyTorch's own gradient of it is one for each example and each use,
    added up afterwards; this one is made once. It can be differentiated again, but not by torch.func.vmap or forward mode.
    """

    @staticmethod
    def forward(weight: Tensor, tokens: Tensor, key_valid: Tensor | None, weigh: bool) -> tuple[Tensor, Tensor]:
        return _on_each(weight, tokens), _weigh(weight, key_valid) if weigh else weight.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.weigh = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (weight, tokens, key_valid), (mixed, masses) = ctx.saved_tensors, gradients
        grad_weight = grad_tokens = None
        if ctx.needs_input_grad[0]:
            batch = tokens.shape[0]
            if (batch > FEW or batch == 0) and tokens.numel() * tokens.element_size() <= CHEAP_BYTES:
                grad_weight = torch.einsum("brd,bnd->rn", mixed, tokens)  # one product over tokens in another order
            else:
                grad_weight = mixed[0] @ tokens[0].mT
                for b in range(1, batch):
                    grad_weight.addmm_(mixed[b], tokens[b].mT)
            if ctx.weigh and key_valid is None:
                grad_weight = grad_weight.add_(masses.mT)
            elif ctx.weigh:
                grad_weight = grad_weight.addmm_(masses.mT, key_valid.to(masses.dtype))
        if ctx.needs_input_grad[1]:
            grad_tokens = _on_each(weight.mT, mixed)
        return grad_weight, grad_tokens, None, None


def _on_each(matrix: Tensor, batch: Tensor) -> Tensor:
    """``matrix @ batch``, which PyTorch would compute as one product of another layout and then copy."""
    return (matrix @ batch[0])[None] if batch.shape[0] == 1 else torch.bmm(matrix.expand(batch.shape[0], -1, -1), batch)
