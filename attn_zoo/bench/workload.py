"""Steps of inference and of training that are timed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from attn_zoo.bench.timing import Parts
from attn_zoo.contract.auxiliary import auxiliary_loss, has_auxiliary_loss

Inputs = tuple[Tensor, ...]


def forward_parts(module: nn.Module, copies: Sequence[Inputs]) -> Parts:
    """Return an inference step of a module as a tuple of one function. Repeated steps use the copies of the inputs in turn."""
    turns = itertools.cycle(copies)

    def forward(_: object) -> None:
        with torch.inference_mode():
            module(*next(turns))

    return (forward,)


def training_parts(module: nn.Module, copies: Sequence[Inputs]) -> Parts:
    """Return the parts of a training step of a module as functions: the forward pass and the backward pass.

    The backward pass starts from random gradients of the output, drawn in the first step, and from the auxiliary loss, if there is
    one. Repeated steps use the copies of the inputs in turn. After a step, no gradients are kept.
    """
    for tensor in itertools.chain.from_iterable(copies):
        tensor.requires_grad_(tensor.is_floating_point())
    turns = itertools.cycle(copies)
    gradients: list[Tensor] = []
    auxiliary = has_auxiliary_loss(module)

    def forward(_: object) -> tuple[Tensor, Tensor | float, Inputs]:
        inputs = next(turns)
        return module(*inputs), auxiliary_loss(module) if auxiliary else 0.0, inputs

    def backward(done: tuple[Tensor, Tensor | float, Inputs]) -> None:
        output, loss, inputs = done
        if not gradients:
            gradients.append(torch.randn_like(output))
        losses = [loss] if isinstance(loss, Tensor) else []
        torch.autograd.backward([output, *losses], [gradients[0], *(None for _ in losses)])
        for tensor in inputs:
            tensor.grad = None
        module.zero_grad(set_to_none=True)

    return forward, backward


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the number of bytes of all tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)
