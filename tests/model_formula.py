"""FLOPs of a whole model by formula: the sum over attention layers and the linear maps and convolutions around them.

Tests compare it with PyTorch's count, which records hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from attn_zoo.contract import Batch, Cost
from attn_zoo.count import count_model
from attn_zoo.count.formulas import answer_cost, convolution_cost, layer_cost, source_cost, total_cost
from attn_zoo.layer import MultiHeadAttention, Remembered


def model_formula(model: nn.Module, batch: Batch) -> tuple[int, int | None]:
    """FLOPs of a forward pass over ``batch`` in evaluation, and of the backward pass after it."""
    products = _Products()
    watching = [module.register_forward_hook(products.see, with_kwargs=True) for module in _outside_of_attention(model)]
    try:
        model.eval()(batch.inputs, batch.valid)
    finally:
        for handle in watching:
            handle.remove()
    return products.flops, products.backward_flops


def agrees(model: nn.Module, batch: Batch) -> bool:
    """Return True if PyTorch's count equals the formula, for a model with the implementation that its card counts."""
    counted = count_model(model, batch)
    return model_formula(model, batch) == (counted.flops, counted.backward_flops) and bool(counted.flops)


def remember_cost(layer: MultiHeadAttention) -> Cost:
    """Cost of ``layer.remember``."""
    return total_cost(source_cost(layer), convolution_cost(layer))


def recall_cost(layer: MultiHeadAttention) -> Cost:
    """Cost of a call with ``remembered``: queries, the part of the mechanism that ``remember`` does not do, and the output."""
    answer = answer_cost(layer)
    return total_cost(answer, convolution_cost(layer)) if layer.makes_queries else answer


def _outside_of_attention(model: nn.Module) -> list[nn.Module]:
    """Attention layers, and modules with a matrix product outside of attention layers."""
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    inside = {id(part) for layer in layers for part in layer.modules()}
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d)
    return layers + [module for module in model.modules() if isinstance(module, kinds) and id(module) not in inside]


class _Products:
    """Sum of the FLOPs of modules as they are called."""

    def __init__(self) -> None:
        self.flops = 0
        self.backward_flops: int | None = 0
        self._remembered: list[Remembered] = []

    def see(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], out: Tensor) -> None:
        """Add the FLOPs of a call; a forward hook."""
        tokens: Tensor = given[0]
        if isinstance(module, MultiHeadAttention):
            for cost in self._of_layer(module, named.get("remembered")):
                backward = cost.backward_flops
                self._add(cost.flops * tokens.shape[0], None if backward is None else backward * tokens.shape[0])
        else:
            weight = module.get_parameter("weight")
            forward = 2 * out.numel() * (weight.numel() // weight.shape[0])
            self._add(forward, forward * (weight.requires_grad + tokens.requires_grad))

    def _of_layer(self, layer: MultiHeadAttention, remembered: Remembered | None) -> Iterator[Cost]:
        """Costs of a call; keys and values that layers share are counted in the first call that uses them."""
        if remembered is None:
            yield layer_cost(layer)
            return
        yield recall_cost(layer)
        if all(remembered is not other for other in self._remembered):
            self._remembered.append(remembered)
            yield remember_cost(layer)

    def _add(self, forward: int, backward: int | None) -> None:
        self.flops += forward
        self.backward_flops = None if backward is None or self.backward_flops is None else self.backward_flops + backward
