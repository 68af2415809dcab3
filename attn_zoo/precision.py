"""Autocast around a call: the type it asks for, and how to leave it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Computes in the types it is given, for numbers that autocast would spoil. The meta device knows no autocast."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The type in which products of ``tensor`` are taken: its own, or autocast's, which leaves float64 alone."""
    device = tensor.device.type
    if device == "meta" or tensor.dtype is torch.float64 or not torch.is_autocast_enabled(device):
        return tensor.dtype
    return torch.get_autocast_dtype(device)
