"""Checks of the dtypes of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def check_floating(owner: str, name: str, tensor: object) -> None:
    """Raise a ValueError if ``tensor`` is not a tensor of floating-point numbers.

    Args:
        owner: name of the mechanism or layer, for the message.
        name: name of the argument, for the message.
        tensor: the value to check.
    """
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise ValueError(f"{owner}: {name} must be a tensor of floating-point numbers; got {kind_of(tensor)}")


def check_dtype(dtype: object) -> None:
    """Raise a ValueError if mechanisms cannot compute in this dtype. They support only floating-point numbers of at least 16
    bits.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise ValueError(f"dtype must be a torch.dtype of floating-point numbers of 16 bits or more; got {dtype!r}")


def kind_of(value: object) -> str:
    """Return words for an error message: the dtype and shape of a tensor, or the type of any other value."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"a {type(value).__name__}"
