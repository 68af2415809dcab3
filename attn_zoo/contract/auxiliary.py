"""Auxiliary losses: terms that mechanisms add to the training loss."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class AuxiliaryLoss:
    """Auxiliary loss of the latest training call of a mechanism. A mechanism with such a loss holds this object as its attribute
    ``auxiliary``.

    Each training call replaces the loss. Copies and pickles hold no loss, because it belongs to the autograd graph of its call.
    """

    def __init__(self) -> None:
        self.term: Tensor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return AuxiliaryLoss, ()


def has_auxiliary_loss(model: nn.Module) -> bool:
    """Return True if a mechanism in the model has an auxiliary loss."""
    return any(isinstance(getattr(module, "auxiliary", None), AuxiliaryLoss) for module in model.modules())


def auxiliary_loss(model: nn.Module) -> Tensor | float:
    """Return the sum of the auxiliary losses of all mechanisms in the model, from their latest training calls, and remove them.
    Return 0 if no mechanism has a loss.

    A training loop adds this sum to its loss. An auxiliary loss gives a gradient only to parameters that no other loss trains. Its
    scale does not matter to Adam, unless gradients are clipped by the norm of all of them.
    """
    total: Tensor | float = 0.0
    for module in model.modules():
        held = getattr(module, "auxiliary", None)
        if isinstance(held, AuxiliaryLoss) and held.term is not None:
            total, held.term = total + held.term, None
    return total
