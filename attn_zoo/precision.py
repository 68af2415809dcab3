"""Autocast (PyTorch's mixed precision): the dtype that it gives to matrix products, and a context without it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without autocast, for computations that need the precision of their inputs.

    On the meta device it has no effect.
    """
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which matrix products with ``tensor`` are computed.

    It is the dtype of autocast if autocast is on and ``tensor`` is not float64. Otherwise it is the dtype of ``tensor``.
    """
    device = tensor.device.type
    if device == "meta" or tensor.dtype is torch.float64 or not torch.is_autocast_enabled(device):
        return tensor.dtype
    return torch.get_autocast_dtype(device)
