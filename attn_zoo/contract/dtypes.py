"""Checks of the dtypes of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def check_floating(owner: str, name: str, tensor: object) -> None:
    """Raise an error if a value is not a tensor of floating-point numbers.

    Raises:
        ValueError: the message names the owner, the argument, and the dtype and shape, or the type, of the value.
    """
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise ValueError(f"{owner}: {name} must be a tensor of floating-point numbers; got {kind_of(tensor)}")


def check_dtype(dtype: object) -> None:
    """Raise an error if no mechanism computes in this dtype: integers, truth values, complex numbers, and numbers of fewer than 16
    bits.

    Raises:
        ValueError: the message names the rule and the value.
    """
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < 2:
        raise ValueError(f"dtype must be a torch.dtype of floating-point numbers of 16 bits or more; got {dtype!r}")


def kind_of(value: object) -> str:
    """Return the dtype and shape of a tensor as words, or the type of any other value."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return f"a {type(value).__name__}"
