"""Costs of a mechanism, a layer or a whole model, by formulas and as PyTorch counts them, and warnings about options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.contract import AttentionCard, Batch, Cost, Geometry, choose_implementation
from attn_zoo.count.counter import Counts, as_on_a_cpu, flops_of, kept_bytes, tally
from attn_zoo.count.formulas import layer_cost
from attn_zoo.count.subjects import BareMechanism, Subject, build_module, geometry_of, mechanism_inputs, random_inputs
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.registry import attention_options, card

COUNTABLE = ("eager", "tiled", "sdpa")
"""Implementations that need no GPU, so that PyTorch can count them from shapes."""


def count_subject(scope: str, subject: Subject, dim: int, heads: int, length: int) -> Counts:
    """Return the costs of self-attention over ``length`` tokens: of a mechanism alone, or of a layer around it.

    Formulas give the FLOPs, parameters and recurrent state of the implementation that they describe. PyTorch counts backward FLOPs
    without a formula, and the activation bytes of the implementation of ``subject``. PyTorch counts from shapes, so activation
    bytes of GPU kernels are unknown. ``auto`` means the implementation that is chosen on a CPU.

    Args:
        scope: one of ``attn_zoo.count.subjects.SCOPES``.

    Raises:
        UnknownNameError: no such mechanism, option or implementation.
        UnsupportedError: the request is outside the capabilities of the mechanism, or its options or implementation do not support
            these sizes.
        ValueError: an option breaks its rule.
    """
    entry, geometry = card(subject.attention), geometry_of(subject, dim, heads, length)
    if subject.implementation == "auto":
        chosen = choose_implementation(entry, geometry, attention_options(entry, geometry, subject.options), torch.device("cpu"))
        subject = replace(subject, implementation=chosen)

    def build(implementation: str) -> nn.Module:
        with torch.device("meta"):
            return build_module(scope, replace(subject, implementation=implementation), dim, heads, length).eval()

    def inputs() -> tuple[Tensor, ...]:
        return random_inputs(scope, subject, dim, heads, 1, length, torch.float32)

    own = _count_on_shapes(build(subject.implementation), inputs, subject.implementation)
    counted = build(entry.counted_implementation)
    stated, kept = stated_cost(counted), None if own is None else own.activation_bytes
    backward = stated.backward_flops
    if backward is None and (found := _count_on_shapes(counted, inputs, "eager")) is not None:
        backward = found.backward_flops
    return Counts(stated.flops, backward, stated.parameters, kept, stated.state_bytes)


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
    if implementation not in COUNTABLE:
        return None
    with torch.device("meta"):
        module = BareMechanism(entry.build(geometry, options, implementation)).eval()
    found = _count_on_shapes(module, lambda: mechanism_inputs(entry, geometry, options), implementation, backward=False)
    return None if found is None else found.activation_bytes


def _count_on_shapes(
    module: nn.Module, inputs: Callable[[], Sequence[Tensor]], implementation: str, *, backward: bool = True
) -> Counts | None:
    """Return what PyTorch counts in a forward pass of a module on the ``meta`` device and, if requested, in the backward pass.
    Return None if shapes do not suffice, or if the implementation needs a GPU."""
    if implementation not in COUNTABLE:
        return None
    with as_on_a_cpu(module) if implementation == "sdpa" else torch.device("meta"):
        given = with_gradients(inputs())
        there = [*given, *module.parameters(), *module.buffers()]
        try:
            if backward:
                return tally(lambda: module(*given), there, module)
            return Counts(activation_bytes=kept_bytes(lambda: module(*given), there)[1])
        except (NotImplementedError, RuntimeError):
            return None


def with_gradients(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Make each tensor require a gradient, and return the tensors."""
    return [tensor.requires_grad_() for tensor in tensors]


def stated_cost(module: nn.Module) -> Cost:
    """Return the cost of a mechanism (``BareMechanism``) or of an attention layer by formula."""
    if isinstance(module, BareMechanism):
        mechanism = module.mechanism
        return mechanism.card.cost(mechanism.geometry, mechanism.options)
    assert isinstance(module, MultiHeadAttention)
    return layer_cost(module)


def count_parameters(model: nn.Module) -> int:
    """Return the number of trainable parameters of a model."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def attention_parameters(model: nn.Module) -> int:
    """Return the number of trainable parameters in the attention layers of a model, including projections."""
    return sum(count_parameters(module) for module in model.modules() if isinstance(module, MultiHeadAttention))


def count_flops(model: nn.Module, batch: Batch) -> int:
    """Return the FLOPs of a forward pass over ``batch``. Each multiplication and each addition in a matrix product counts as one.

    Build the model with the implementation ``eager``, ``tiled`` or ``sdpa``, because PyTorch does not count other kernels. The
    model may be on the ``meta`` device, where nothing is computed. It is put into evaluation mode.
    """
    model.eval()
    with torch.no_grad():
        return flops_of(lambda: model(batch.inputs, batch.valid))


def count_model(model: nn.Module, batch: Batch) -> Counts:
    """Return the costs of a forward and a backward pass over ``batch``, as PyTorch counts them. Only trainable parameters are
    counted.

    To compare the costs with the formulas of a mechanism, build the model with the implementation that the formulas describe
    (``counted_implementation`` of the mechanism's card). The model may be on the ``meta`` device, where nothing is computed. It is
    put into evaluation mode, and its parameters get gradients.
    """
    model.eval()
    found = tally(lambda: model(batch.inputs, batch.valid), [batch.inputs, *model.parameters(), *model.buffers()], model)
    return replace(found, parameters=count_parameters(model))


def setting_warnings(entry: AttentionCard, geometry: Geometry, options: Any) -> tuple[str, ...]:
    """Return the warnings of a mechanism about these options. Another warning is added if its matrix products cost more than those
    of softmax. Each warning begins with the name of the mechanism. ``entry`` is the mechanism's card (its description in the
    registry)."""
    found = list(entry.build.warnings(geometry, options))
    softmax = card("softmax")
    times = entry.cost(geometry, options).flops / softmax.cost(geometry, softmax.options()).flops
    if times > 1:
        found.append(
            f"its matrix products cost {f'{times:.2f}' if times >= 1.005 else 'a little over 1.00'} times those of softmax here"
        )
    return tuple(f"{entry.name}: {words}" for words in found)


def model_warnings(model: nn.Module) -> tuple[str, ...]:
    """Return the warnings about all attention layers of a model, without repetitions."""
    layers = [module.mechanism for module in model.modules() if isinstance(module, MultiHeadAttention)]
    return tuple(dict.fromkeys(words for m in layers for words in setting_warnings(m.card, m.geometry, m.options)))
