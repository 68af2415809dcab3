"""State that a mechanism carries from one piece of a sequence to the next."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class CarriedState(Protocol):
    """State of a mechanism after the tokens read so far: a frozen dataclass of all tensors that later outputs need.

    No call changes a state, so several continuations can start from the same one.
    """

    @property
    def position(self) -> int:
        """Number of tokens read."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors in the state, for the whole batch."""


def check_state(owner: str, state: Any, held: str, shape: tuple[int, ...], dtype: torch.dtype, value: Tensor) -> None:
    """Raise an error if the tensor ``held`` of a state is missing, or has another shape, dtype or device than required.

    Args:
        value: values of the step, whose device the state must share.

    Raises:
        ValueError: the message names the mechanism, the required state, the given one, and the call that makes a first state.
    """
    tensor = getattr(state, held, None)
    wanted = f"{tuple(shape)} {dtype} on {value.device}"
    got = f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}" if isinstance(tensor, Tensor) else type(state).__name__
    if got != wanted:
        raise ValueError(
            f"{owner}: the state does not fit these inputs: after {state.position} tokens it must be {wanted}; got {got}; "
            f"start again with initial_state({value.shape[0]}, dtype={value.dtype}, device={str(value.device)!r})"
        )
