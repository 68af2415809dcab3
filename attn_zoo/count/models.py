"""Parameters, FLOPs and activations of a whole model, and warnings about the options of its attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from attn_zoo.contract import AttentionCard, Batch, Geometry
from attn_zoo.count.counter import flops_of, tally
from attn_zoo.count.levels import Counts
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.registry import card


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
    return Counts(found.flops, found.backward_flops, count_parameters(model), found.kept_bytes)


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
