"""Recurrent states, which mechanisms carry from one piece of a sequence to the next."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from attn_zoo.precision import autocast_dtype


@runtime_checkable
class CarriedState(Protocol):
    """Recurrent state of a mechanism after the tokens read so far: a frozen dataclass of all tensors that later outputs need.

    No call changes a state, so several continuations can start from the same one.
    """

    @property
    def position(self) -> int:
        """Number of tokens read so far."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in the state, for the whole batch."""


def check_state(owner: str, state: Any, held: str, shape: tuple[int, ...], dtype: torch.dtype, value: Tensor) -> None:
    """Raise a ValueError if a tensor of a recurrent state is missing, or if its shape, dtype or device is wrong.

    Args:
        owner: name of the mechanism, for the message.
        held: name of the attribute of the state that holds the tensor.
        shape, dtype: shape and dtype that the tensor must have.
        value: values of the step; the state must be on the same device.
    """
    tensor = getattr(state, held, None)
    wanted = f"{tuple(shape)} {dtype} on {value.device}"
    got = f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}" if isinstance(tensor, Tensor) else type(state).__name__
    if got != wanted:
        advice = f"Start again with initial_state({value.shape[0]}, dtype={value.dtype}, device={str(value.device)!r})"
        if autocast_dtype(value.float()) is not torch.float32:  # which converts what a layer projects, but not its tokens
            advice += f". For a layer, call initial_state({value.shape[0]}) under the same autocast as step"
        raise ValueError(
            f"{owner}: the state does not fit these inputs: after {state.position} tokens it must be {wanted}; got {got}. {advice}"
        )
