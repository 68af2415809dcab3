"""States before each chunk of a sequence: s₀ = 0 and s꜀₊₁ = a꜀ s꜀ + x꜀, where x꜀ is the sum over chunk c and a꜀ a factor."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.library import custom_op

from attn_zoo.kernels.derivatives import once_differentiable

Sums = Float[Tensor, "batch heads chunks m d"]


def sums_before(summed: Sums, kept: Float[Tensor, "batch heads chunks 1 1"]) -> Sums:
    """Return the state s꜀ before each chunk c, given the sum x꜀ over each chunk (``summed``) and the factor a꜀ by which chunk c
    multiplies the state (``kept``). ``kept`` must not require a gradient.
    """
    # Compiled as one operator, because a graph with the loop would hold for one number of chunks.
    return _operator(summed, kept) if torch.compiler.is_compiling() else _loop(summed, kept)


def _loop(summed: Sums, kept: Tensor) -> Sums:
    state, states = torch.zeros_like(summed[:, :, 0]), []
    for own, keep in zip(summed.unbind(2), kept.unbind(2), strict=True):
        states.append(state)
        state = state * keep + own
    return torch.stack(states, dim=2)


_operator = custom_op("attn_zoo::sums_before", _loop, mutates_args=(), schema="(Tensor summed, Tensor kept) -> Tensor")


@_operator.register_fake
def _(summed: Tensor, kept: Tensor) -> Tensor:
    return summed.new_empty(summed.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


@once_differentiable
def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    """Return the sum over later chunks. The gradient of x꜀ is the same sum over the chunks in reverse order."""
    return _operator(gradient.flip(2), ctx.saved_tensors[0].flip(2)).flip(2), None


_operator.register_autograd(_gradients, setup_context=_save)
