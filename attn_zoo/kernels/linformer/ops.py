"""PyTorch operators around the kernel launches. They state output shapes for tracing, and define gradients.

Every kernel is called inside a ``custom_op``, so ``torch.compile`` does not trace launches. Operators have no side effects, return
new contiguous tensors, and take their randomness from a seed tensor that stays on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from attn_zoo.kernels.derivatives import once_differentiable
from attn_zoo.kernels.linformer import launch

_INPUTS = "Tensor query, Tensor key, Tensor value"
_RANDOM = "Tensor? seed, float dropout"


def _operator(name: str, arguments: str, results: str) -> Any:
    schema = f"({arguments}) -> {results}"
    return custom_op(f"attn_zoo::linformer_{name}", getattr(launch, name), mutates_args=(), schema=schema)


attend = _operator("attend", f"{_INPUTS}, {_RANDOM}", "Tensor")
attend_backward = _operator("attend_backward", f"Tensor grad, {_INPUTS}, {_RANDOM}", "(Tensor, Tensor, Tensor)")
attend_blocks = _operator("attend_blocks", f"{_INPUTS}, {_RANDOM}", "(Tensor, Tensor)")
attend_blocks_backward = _operator(
    "attend_blocks_backward", f"Tensor grad, {_INPUTS}, Tensor out, Tensor normaliser, {_RANDOM}", "(Tensor, Tensor, Tensor)"
)
project = _operator("project", "Tensor projection, Tensor tokens, Tensor? key_valid", "Tensor")
project_backward_projection = _operator("project_backward_projection", "Tensor grad, Tensor tokens, Tensor? key_valid", "Tensor")


def _by_position(tensor: Tensor) -> Tensor:
    """Allocate a tensor (batch, length, heads, head_dim) like ``tensor``, whose shape is (batch, heads, length, head_dim)."""
    batch, heads, length, dim = tensor.shape
    return tensor.new_empty(batch, length, heads, dim)


@attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, seed: Tensor | None, dropout: float) -> Tensor:
    return _by_position(query)


@attend_backward.register_fake
@attend_blocks_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *saved: Any) -> tuple[Tensor, ...]:
    return _by_position(query), _by_position(key), _by_position(value)


@attend_blocks.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, seed: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    return _by_position(query), query.new_empty(query.shape[:3], dtype=wide)


@project.register_fake
def _(projection: Tensor, tokens: Tensor, key_valid: Tensor | None) -> Tensor:
    return tokens.new_empty(tokens.shape[0], tokens.shape[1], projection.shape[1], tokens.shape[3])


@project_backward_projection.register_fake
def _(grad: Tensor, tokens: Tensor, key_valid: Tensor | None) -> Tensor:
    return tokens.new_empty(grad.shape[1], grad.shape[2], tokens.shape[2])


def _by_head(grads: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Return the gradients in the layout of the inputs, followed by None for seed and dropout."""
    return (*(grad.transpose(1, 2) for grad in grads), None, None)


def _save_attend(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.dropout = inputs
    ctx.save_for_backward(*tensors)


@once_differentiable
def _differentiate_attend(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _by_head(attend_backward(grad, *ctx.saved_tensors, ctx.dropout))


def _save_attend_blocks(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, seed, ctx.dropout = inputs
    ctx.save_for_backward(query, key, value, *output, seed)


@once_differentiable
def _differentiate_attend_blocks(ctx: Any, grad: Tensor, grad_normaliser: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of the inputs. The normaliser has none, because it never leaves this package."""
    return _by_head(attend_blocks_backward(grad, *ctx.saved_tensors, ctx.dropout))


def _save_project(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    projection, tokens, key_valid = inputs
    # Each tensor is saved only if the gradient of the other one is needed.
    ctx.save_for_backward(projection if ctx.needs_input_grad[1] else None, tokens if ctx.needs_input_grad[0] else None, key_valid)


@once_differentiable
def _differentiate_project(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    projection, tokens, key_valid = ctx.saved_tensors
    grad_projection = project_backward_projection(grad, tokens, key_valid) if ctx.needs_input_grad[0] else None
    grad_tokens = _grad_tokens(projection, grad, key_valid) if ctx.needs_input_grad[1] else None
    return grad_projection, grad_tokens, None


def _grad_tokens(projection: Tensor, grad: Tensor, key_valid: Tensor | None) -> Tensor:
    """Compute Eᵀ dY, which is zero at padding. A library product is best here, because the sum (r) is short and the output
    large.
    """
    heads, rows, _ = projection.shape
    if heads == 1:
        out = projection.mT @ grad
    else:  # one product for each head and all examples: broadcasting would copy E for each example
        side_by_side = grad.permute(1, 2, 0, 3)
        by_head = projection.mT @ side_by_side.reshape(heads, rows, grad.shape[0] * grad.shape[3])
        out = by_head.unflatten(-1, (grad.shape[0], grad.shape[3])).permute(2, 0, 1, 3)
    return out if key_valid is None else out.masked_fill(~key_valid[:, None, :, None], 0)


attend.register_autograd(_differentiate_attend, setup_context=_save_attend)
attend_blocks.register_autograd(_differentiate_attend_blocks, setup_context=_save_attend_blocks)
project.register_autograd(_differentiate_project, setup_context=_save_project)
