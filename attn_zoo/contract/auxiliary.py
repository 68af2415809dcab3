"""Auxiliary losses: terms that mechanisms add to the training loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.contract.errors import UnsupportedError


class AuxiliaryLoss:
    """Auxiliary loss of a mechanism in the latest forward pass in training. A mechanism with such a loss holds this object as its
    attribute ``auxiliary``.

    Each forward pass replaces the loss. Copies and pickles hold no loss, because it belongs to the autograd graph of its call.

    Args:
        calls: number of calls of the mechanism in a forward pass; more than 1 if a network applies one block several times.
    """

    def __init__(self, calls: int = 1) -> None:
        self.calls = calls
        self._terms: list[Tensor] = []
        self.recorded = True
        """True if the call that set ``term`` recorded gradients."""

    @property
    def term(self) -> Tensor | None:
        """Sum of the auxiliary losses of the latest training calls, ``calls`` in number, or None after it was added to a loss. A
        call sets its own loss.

        If gradient checkpointing repeats a call in the backward pass, the loss of the repeated call is ignored, because the loss of
        the first call was added. Within a compiled call, repetitions are not recognised.
        """
        return sum(self._terms[1:], start=self._terms[0]) if self._terms else None

    @term.setter
    def term(self, term: Tensor | None) -> None:
        if term is None:
            self._terms = []
        elif torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:
            self._terms, self.recorded = [*self._terms, term][-self.calls :], torch.is_grad_enabled()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.calls,)


def expect_calls(model: nn.Module, calls: int) -> None:
    """Tell the mechanisms of a model that a forward pass calls each of them ``calls`` times. Their auxiliary loss is then the sum
    over these calls.
    """
    for module in model.modules():
        if isinstance(held := getattr(module, "auxiliary", None), AuxiliaryLoss):
            held.calls = calls


def has_auxiliary_loss(model: nn.Module) -> bool:
    """Return True if a mechanism in the model has an auxiliary loss."""
    return any(isinstance(getattr(module, "auxiliary", None), AuxiliaryLoss) for module in model.modules())


def auxiliary_loss(model: nn.Module) -> Tensor | float:
    """Return the sum of the auxiliary losses of all mechanisms in the model, from the latest forward pass in training, and remove
    them. Return 0 if no mechanism has a loss. If a network of yours calls a mechanism several times in a forward pass, set
    ``mechanism.auxiliary.calls`` to this number; otherwise only the last call counts.

    A training loop adds this sum to its loss. An auxiliary loss gives a gradient only to parameters that no other loss trains. Its
    scale does not matter to Adam, unless gradients are clipped by the norm of all of them.

    Raises:
        UnsupportedError: the latest training call of a mechanism recorded no gradients, as with reentrant gradient checkpointing,
            so its auxiliary loss cannot train the parameters. Under ``torch.no_grad``, or if all parameters of the mechanism are
            frozen, there is no such error.
    """
    total: Tensor | float = 0.0
    for module in model.modules():
        held = getattr(module, "auxiliary", None)
        if isinstance(held, AuxiliaryLoss) and held.term is not None:
            if torch.is_grad_enabled() and not held.recorded and any(p.requires_grad for p in module.parameters()):
                held.term = None
                raise UnsupportedError(
                    f"{type(module).__name__}: the training call before auxiliary_loss must record gradients, because the "
                    "auxiliary loss trains parameters; this call recorded none. With gradient checkpointing, set "
                    "use_reentrant=False. Otherwise call the model without torch.no_grad()"
                )
            total, held.term = total + held.term, None
    return total
