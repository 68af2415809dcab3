"""Costs of a mechanism, a layer or a block, counted by formulas and by PyTorch from shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.contract import AttentionCard, Cost, Geometry, choose_implementation
from attn_zoo.count.counter import Tally, as_on_a_cpu, kept_bytes, tally
from attn_zoo.count.formulas import block_cost, layer_cost
from attn_zoo.count.rigs import BareMechanism, Sizes, Subject, mechanism_inputs, rig_for
from attn_zoo.encoder.token import Block
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.registry import attention_options, card

ON_SHAPES = ("eager", "tiled")
"""Implementations that run on the ``meta`` device."""

QUANTITIES = ("flops", "backward_flops", "parameters", "activation_bytes", "state_bytes")


@dataclass(frozen=True, slots=True)
class Counts:
    """FLOPs, FLOPs of the backward pass, number of parameters, and bytes of activations and of the recurrent state, for one
    example in float32. A cost is None if it is unknown. ``state_bytes`` is also None if there is no recurrent state."""

    flops: int | None = None
    backward_flops: int | None = None
    parameters: int | None = None
    activation_bytes: int | None = None
    state_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """Costs of a mechanism: computed by its formulas, and counted by PyTorch."""

    formula: Counts
    pytorch: Counts

    def shown(self, quantity: str) -> int | None:
        """Return a cost by formula or, if it has no formula, as PyTorch counts it. ``quantity`` is the name of a field of
        ``Counts``."""
        stated, found = getattr(self.formula, quantity), getattr(self.pytorch, quantity)
        return found if stated is None else stated

    def disagreements(self) -> dict[str, tuple[int, int]]:
        """Return the costs for which the formula and PyTorch differ. The keys are names of costs. A value is a pair: the number
        by formula, and that by PyTorch."""
        pairs = {name: (getattr(self.formula, name), getattr(self.pytorch, name)) for name in QUANTITIES}
        return {name: pair for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]}


def count_level(level: str, subject: Subject, sizes: Sizes, length: int) -> Counted:
    """Return the costs of self-attention over ``length`` tokens, by formula and as PyTorch counts them. ``level`` says what is
    counted: a mechanism alone, a layer around it, or a block around the layer.

    FLOPs and parameters are counted for the implementation that the formulas describe. Activation bytes have no formula, and are
    counted for the implementation of ``subject``. If this is ``auto``, the one that is chosen on a CPU is counted. PyTorch counts
    from shapes, on the ``meta`` device, so activation bytes of GPU kernels are not counted.

    Args:
        level: one of ``attn_zoo.count.rigs.LEVELS``.

    Raises:
        UnknownNameError: no such mechanism, option or implementation.
        UnsupportedError: the request is outside the capabilities of the mechanism, or its options or implementation do not support
            these sizes.
        ValueError: an option breaks its rule.
    """
    entry, geometry = card(subject.attention), sizes.geometry(length, subject.causal)
    if subject.implementation == "auto":
        chosen = choose_implementation(entry, geometry, attention_options(entry, geometry, subject.options), torch.device("cpu"))
        subject = replace(subject, implementation=chosen)
    rig = rig_for(level, subject, sizes)
    inputs = partial(rig.inputs, 1, length, torch.float32)
    with torch.device("meta"):
        asked = counted = rig.build(length).eval()  # raises for an impossible subject, whichever form is counted
        if subject.implementation != entry.counted_implementation:
            counted = rig_for(level, replace(subject, implementation=entry.counted_implementation), sizes).build(length).eval()
        f, parameters = stated_cost(counted), sum(p.numel() for p in counted.parameters())
        own = found = _tally(counted, inputs())
        if counted is not asked:
            own = _tally(asked, inputs()) if subject.implementation in ON_SHAPES else None
    if subject.implementation == "sdpa":
        with as_on_a_cpu(asked):
            own = _tally(asked, inputs())
    pytorch = Counts(parameters=parameters, activation_bytes=None if own is None else own.kept_bytes)
    if found is not None:
        pytorch = replace(pytorch, flops=found.flops, backward_flops=found.backward_flops)
    return Counted(Counts(f.flops, f.backward_flops, f.parameters, None, f.state_bytes), pytorch)


def activation_bytes(entry: AttentionCard, geometry: Geometry, options: Any, implementation: str = "auto") -> int | None:
    """Return the bytes that autograd saves in a mechanism's forward pass over one example. They are counted from shapes. Each
    storage counts once and in full. Inputs, parameters and buffers do not count.

    Args:
        entry: card of the mechanism (its description in the registry).
        implementation: name of an implementation of the mechanism. ``auto`` means the one that is chosen on a CPU.

    Returns:
        Number of bytes. None if shapes do not suffice, or if the implementation needs a GPU.
    """
    if implementation == "auto":
        implementation = choose_implementation(entry, geometry, options, torch.device("cpu"))
    if implementation not in (*ON_SHAPES, "sdpa"):
        return None
    with torch.device("meta"):
        module = BareMechanism(entry.build(geometry, options, implementation)).eval()
    with as_on_a_cpu(module) if implementation == "sdpa" else torch.device("meta"):
        inputs = with_gradients(mechanism_inputs(entry, geometry, options))
        try:
            return kept_bytes(lambda: module(*inputs), [*inputs, *module.parameters(), *module.buffers()])[1]
        except (NotImplementedError, RuntimeError):
            return None


def with_gradients(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Make each tensor require a gradient, and return the tensors."""
    return [tensor.requires_grad_() for tensor in tensors]


def stated_cost(module: nn.Module) -> Cost:
    """Return the cost of a mechanism, layer or block by formula."""
    if isinstance(module, BareMechanism):
        mechanism = module.mechanism
        return mechanism.card.cost(mechanism.geometry, mechanism.options)
    if isinstance(module, Block):
        hidden = module.mlp[0]
        assert isinstance(hidden, nn.Linear)
        return block_cost(module.attention, hidden.out_features)
    assert isinstance(module, MultiHeadAttention)
    return layer_cost(module)


def _tally(module: nn.Module, tensors: Sequence[Tensor]) -> Tally | None:
    """Return PyTorch's count of the forward and backward pass, or None if shapes do not suffice for this mechanism."""
    inputs = with_gradients(tensors)
    try:
        return tally(lambda: module(*inputs), [*inputs, *module.parameters(), *module.buffers()], module)
    except (NotImplementedError, RuntimeError):
        return None
