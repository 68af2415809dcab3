"""Costs that come out the same on every machine: parameters and FLOPs."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from attn_zoo.contract import Batch
from attn_zoo.layer import MultiHeadAttention


def count_parameters(model: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def attention_parameters(model: nn.Module) -> int:
    """Number of trainable parameters inside attention layers, projections included."""
    return sum(count_parameters(module) for module in model.modules() if isinstance(module, MultiHeadAttention))


def count_flops(model: nn.Module, batch: Batch) -> int:
    """FLOPs of a forward pass over ``batch``, two per multiply-add of every matrix product.

    The model must be built eager: PyTorch counts nothing for some fused kernels. It may live on the
    ``meta`` device, where shapes flow and nothing is computed.
    """
    model.eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(batch.inputs, batch.valid)
    return int(counter.get_total_flops())
