"""Stacks of attention layers with the same mechanism. The layers can share the maps that compress the length, or have different
options.
"""

from __future__ import annotations

from torch import nn

from attn_zoo.contract import join_stacks
from attn_zoo.layer.multi_head import MultiHeadAttention


def join_layers(model: nn.Module) -> None:
    """Join the attention layers of a model into stacks. All layers with the same mechanism form one stack, in the order of the
    layers.

    Some options concern the whole stack. With ``sharing=layerwise`` of Linformer, all layers use one projection along the length,
    which the first layer holds. With ``projected_lengths=64/32``, each layer has its own projected length. Constants of
    ``differential``, and of ``retention`` with ``rates=lightning``, depend on the number of the layer. They are not part of the
    state dict, and before this call every layer has those of the first.

    The models of this package are joined already. On your own model, call this once after building it and before loading a state.
    If an encoder and a decoder must not share a stack, call this once for each of them.

    Raises:
        ValueError: an option has values for another number of layers than the model has, or ``model`` is not an nn.Module.
        UnsupportedError: layers that share a projection along the length are built differently, or share it with another stack
            already.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be an nn.Module; got a {type(model).__name__}")
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    join_stacks([layer.mechanism for layer in layers])
    for layer in layers:
        layer.set_order()
