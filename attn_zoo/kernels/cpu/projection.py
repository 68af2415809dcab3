"""Matrix products E X, which compress tokens X along the length, without a copy of E for each example."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.kernels.cpu._tiling import CHEAP_BYTES
from attn_zoo.kernels.derivatives import GRADIENTS, refuse_transforms
from attn_zoo.precision import autocast_dtype
from attn_zoo.shapes import Keys, KeyValid

FEW = 4
"""Largest batch for which one matrix product per example is faster than a product over the whole batch."""


def project_heads(matrix: Float[Tensor, "#heads r keys"], tokens: Keys) -> Float[Tensor, "batch heads r head_dim"]:
    """Return E X for every head. E compresses the tokens X along the length; ``matrix`` holds one E for all heads, or one per
    head.
    """
    batch, heads, keys, head_dim = tokens.shape
    if matrix.shape[0] == 1:
        side_by_side = tokens.transpose(1, 2).reshape(batch, keys, heads * head_dim)
        return mix(matrix[0], side_by_side)[0].unflatten(-1, (heads, head_dim)).transpose(1, 2)
    # One product per head for the whole batch, so that weights are not copied for each example.
    by_head = tokens.permute(1, 2, 0, 3).reshape(heads, keys, batch * head_dim)
    return torch.bmm(matrix, by_head).unflatten(-1, (batch, head_dim)).permute(2, 0, 1, 3)


def mix(
    weight: Float[Tensor, "r keys"], tokens: Float[Tensor, "batch keys width"], key_valid: KeyValid = None, *, weigh: bool = False
) -> tuple[Float[Tensor, "batch r width"], Float[Tensor, "some r"]]:
    """Return ``weight @ tokens`` and, if ``weigh`` is True, ``masses_of(weight, key_valid)``; otherwise the second tensor is empty.
    Under autocast, both tensors have the dtype of autocast.
    """
    dtype = autocast_dtype(tokens)
    refuse_transforms(weight, tokens, allow=GRADIENTS)
    return _Mix.apply(weight.to(dtype), tokens.to(dtype), key_valid, weigh)


def masses_of(weight: Float[Tensor, "r keys"], key_valid: Bool[Tensor, "batch keys"] | None) -> Float[Tensor, "some r"]:
    """Return, for each example, the sum of each row of ``weight`` over the real tokens. If ``key_valid`` is None, the result has a
    single row for all examples.
    """
    return weight.sum(dim=-1)[None] if key_valid is None else key_valid.to(weight.dtype) @ weight.mT


class _Mix(torch.autograd.Function):
    """Autograd function of ``mix``: products of one matrix with every example and with the mask of real tokens.

    The matrix can be the largest tensor of all. PyTorch's own backward pass computes its gradient for each example and use, and
    adds them; here it is computed once. The function can be differentiated twice, but not by torch.func.vmap or in forward mode.
    """

    @staticmethod
    def forward(weight: Tensor, tokens: Tensor, key_valid: Tensor | None, weigh: bool) -> tuple[Tensor, Tensor]:
        return _on_each(weight, tokens), masses_of(weight, key_valid) if weigh else weight.new_empty(0)

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
                grad_weight = torch.einsum("brd,bnd->rn", mixed, tokens)  # a single product over all tokens
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
    """Compute ``matrix @ batch`` without the copy that a single product of PyTorch in another layout would need."""
    return (matrix @ batch[0])[None] if batch.shape[0] == 1 else torch.bmm(matrix.expand(batch.shape[0], -1, -1), batch)
