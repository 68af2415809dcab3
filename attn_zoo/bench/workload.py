"""Steps of inference and of training that are timed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from attn_zoo.bench.timing import Parts

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

    The backward pass starts from random gradients of the output, drawn in the first step. Repeated steps use the copies of the
    inputs in turn. After a step, no gradients are kept.
    """
    for tensor in itertools.chain.from_iterable(copies):
        tensor.requires_grad_(tensor.is_floating_point())
    turns = itertools.cycle(copies)
    gradients: list[Tensor] = []

    def forward(_: object) -> tuple[Tensor, Inputs]:
        inputs = next(turns)
        return module(*inputs), inputs

    def backward(done: tuple[Tensor, Inputs]) -> None:
        output, inputs = done
        if not gradients:
            gradients.append(torch.randn_like(output))
        output.backward(gradients[0])
        for tensor in inputs:
            tensor.grad = None
        module.zero_grad(set_to_none=True)

    return forward, backward


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the number of bytes of all tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)
