"""Auxiliary losses: terms that mechanisms add to the training loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.contract.errors import UnsupportedError


class AuxiliaryLoss:
    """Auxiliary loss of the latest training call of a mechanism. A mechanism with such a loss holds this object as its attribute
    ``auxiliary``.

    Each training call replaces the loss. Copies and pickles hold no loss, because it belongs to the autograd graph of its call.
    """

    def __init__(self) -> None:
        self._term: Tensor | None = None
        self.recorded = True
        """True if the call that set ``term`` recorded gradients."""

    @property
    def term(self) -> Tensor | None:
        """Auxiliary loss of the latest training call, or None after it was added to a loss.

        If gradient checkpointing repeats a call in the backward pass, the loss of the repeated call is ignored, because the loss of
        the first call was added. Within a compiled call, repetitions are not recognised.
        """
        return self._term

    @term.setter
    def term(self, term: Tensor | None) -> None:
        if term is None or torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:
            self._term, self.recorded = term, torch.is_grad_enabled()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


def has_auxiliary_loss(model: nn.Module) -> bool:
    """Return True if a mechanism in the model has an auxiliary loss."""
    return any(isinstance(getattr(module, "auxiliary", None), AuxiliaryLoss) for module in model.modules())


def auxiliary_loss(model: nn.Module) -> Tensor | float:
    """Return the sum of the auxiliary losses of all mechanisms in the model, from their latest training calls, and remove them.
    Return 0 if no mechanism has a loss.

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
