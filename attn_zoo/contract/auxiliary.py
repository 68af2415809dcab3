"""Terms that mechanisms add to the loss in training calls."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class AuxiliaryLoss:
    """Holder of the term that the latest training call of a mechanism adds to the loss; it is the attribute ``auxiliary``.

    Each training call replaces it. Copies and pickles are empty, because the term belongs to the graph of its call.
    """

    def __init__(self) -> None:
        self.term: Tensor | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return AuxiliaryLoss, ()


def auxiliary_loss(model: nn.Module) -> Tensor | float:
    """Return the sum of the auxiliary terms of the latest training call of the model, and clear them. Return 0 if there are none.

    A training loop adds it to its loss. Only the parameters that such a term trains get a gradient from it, so its scale does not
    matter to Adam.
    """
    total: Tensor | float = 0.0
    for module in model.modules():
        held = getattr(module, "auxiliary", None)
        if isinstance(held, AuxiliaryLoss) and held.term is not None:
            total, held.term = total + held.term, None
    return total
