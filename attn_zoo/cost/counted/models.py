"""Parameters, FLOPs and activations of a whole model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from attn_zoo.contract import Batch, Cost
from attn_zoo.cost.counted.counter import tally
from attn_zoo.cost.counted.formulas import layer_cost, recall_cost, remember_cost
from attn_zoo.cost.counted.levels import Counted, Counts
from attn_zoo.layer import MultiHeadAttention, Remembered


def count_parameters(model: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def attention_parameters(model: nn.Module) -> int:
    """Number of trainable parameters inside attention layers, projections included."""
    return sum(count_parameters(module) for module in model.modules() if isinstance(module, MultiHeadAttention))


def count_flops(model: nn.Module, batch: Batch) -> int:
    """FLOPs of a forward pass over ``batch``, two per multiply-add of every matrix product.

    The model must be built ``eager`` or ``tiled``: PyTorch counts nothing for some fused kernels. It may live on the
    ``meta`` device, where shapes flow and nothing is computed.
    """
    model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(batch.inputs, batch.valid)
    return int(counter.get_total_flops())


def count_model(model: nn.Module, batch: Batch) -> Counted:
    """Count a pass over ``batch``, forward and backward, and what autograd keeps between, in evaluation.

    The formula is that of every attention layer, at the length it was built for, with the linear maps and convolutions around
    it; to compare it with PyTorch's count, build the model with the ``counted_implementation`` of its card. Parameters are those
    that train. Where shapes suffice, build on ``meta``.
    """
    model.eval()
    products = _Products()
    watching = [module.register_forward_hook(products.see, with_kwargs=True) for module in _outside_of_attention(model)]
    try:
        found = tally(lambda: model(batch.inputs, batch.valid), [batch.inputs, *model.parameters(), *model.buffers()])
    finally:
        for handle in watching:
            handle.remove()
    states, known = products.states, [state for state in products.states if state is not None]
    return Counted(
        Counts(products.flops, products.backward_flops, None, None, sum(known) if known and len(known) == len(states) else None),
        Counts(found.flops, found.backward_flops, count_parameters(model), found.kept_bytes),
    )


def _outside_of_attention(model: nn.Module) -> list[nn.Module]:
    """Attention layers, and modules with a matrix product that lie in none."""
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    inside = {id(part) for layer in layers for part in layer.modules()}
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d)
    return layers + [module for module in model.modules() if isinstance(module, kinds) and id(module) not in inside]


class _Products:
    """Adds up what modules cost as they are called."""

    def __init__(self) -> None:
        self.flops = 0
        self.backward_flops: int | None = 0
        self.states: list[int | None] = []
        """Of each call of an attention layer; one for all calls that share what is remembered."""
        self._remembered: list[Remembered] = []

    def see(self, module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], out: Tensor) -> None:
        """A forward hook."""
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
        """What was remembered is paid for by the first call that uses it."""
        whole = layer_cost(layer)
        if remembered is None:
            yield whole
        else:
            yield recall_cost(layer)
        first = all(remembered is not other for other in self._remembered)
        if remembered is not None and first:
            self._remembered.append(remembered)
            yield remember_cost(layer)
        if remembered is None or first:
            self.states.append(whole.state_bytes)

    def _add(self, forward: int, backward: int | None) -> None:
        self.flops += forward
        self.backward_flops = None if backward is None or self.backward_flops is None else self.backward_flops + backward
