"""Steps of inference and of training that are timed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from attn_zoo.bench.timing import Parts
from attn_zoo.contract import auxiliary_loss

CLIP_NORM = 1.0
"""Norm to which gradients are clipped before the optimiser's step, as by default in training runs."""

Inputs = tuple[Tensor, ...]


class Workload:
    """Module and, if requested, AdamW for its parameters with learning rate 0. The state of AdamW is allocated immediately."""

    def __init__(self, module: nn.Module, optimiser: bool) -> None:
        self.module = module
        trained = [p for p in module.parameters() if p.requires_grad]
        self._optimiser = torch.optim.AdamW(trained, lr=0.0) if optimiser and trained else None
        if self._optimiser is not None:
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter)
            self._optimiser.step()
            self._optimiser.zero_grad()

    def state(self) -> list[Tensor]:
        """Return the tensors of the optimiser's state."""
        state = {} if self._optimiser is None else self._optimiser.state
        return [value for entry in state.values() for value in entry.values() if isinstance(value, Tensor)]

    def forward(self, copies: Sequence[Inputs]) -> Parts:
        """Return an inference step as a tuple of one function. Repeated steps use the copies of the inputs in turn."""
        turns = itertools.cycle(copies)

        def forward(_: object) -> None:
            with torch.inference_mode():
                self.module(*next(turns))

        return (forward,)

    def training(self, copies: Sequence[Inputs]) -> Parts:
        """Return the parts of a training step as functions: the forward pass, the backward pass and, if there is an optimiser, its
        step.

        The backward pass starts from random gradients of the output, drawn in the first step. Repeated steps use the copies of
        the inputs in turn. After a step, no gradients are kept.
        """
        for tensor in itertools.chain.from_iterable(copies):
            tensor.requires_grad_(tensor.is_floating_point())
        turns = itertools.cycle(copies)
        gradients: list[Tensor] = []

        def forward(_: object) -> tuple[Tensor, Tensor | float, Inputs]:
            inputs = next(turns)
            return self.module(*inputs), auxiliary_loss(self.module), inputs

        def backward(done: tuple[Tensor, Tensor | float, Inputs]) -> None:
            output, loss, inputs = done
            if not gradients:
                gradients.append(torch.randn_like(output))
            if isinstance(loss, Tensor):
                torch.autograd.backward([output, loss], [gradients[0], None])
            else:
                output.backward(gradients[0])
            for tensor in inputs:
                tensor.grad = None
            if self._optimiser is None:
                self.module.zero_grad(set_to_none=True)

        return (forward, backward) if self._optimiser is None else (forward, backward, self._update)

    def _update(self, _: object) -> None:
        assert self._optimiser is not None
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), CLIP_NORM)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the number of bytes of all tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)
