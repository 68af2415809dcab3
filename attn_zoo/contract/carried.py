"""What is carried from one piece of a sequence to the next."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class CarriedState(Protocol):
    """All that later answers need of the tokens read so far: a frozen dataclass of whatever tensors a mechanism holds.

    No call writes into it, so that a sequence can go on from it in several ways.
    """

    @property
    def position(self) -> int:
        """How many tokens were read."""

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers that are carried, of the whole batch."""


def check_state(owner: str, state: Any, held: str, shape: tuple[int, ...], dtype: torch.dtype, value: Tensor) -> None:
    """Refuse a state whose tensor ``held`` is missing or of another shape, dtype or device than wanted.

    Args:
        value: of the step; on its device the state must be.

    Raises:
        ValueError: naming the mechanism, what is wanted, what came, and where to start from.
    """
    tensor = getattr(state, held, None)
    wanted = f"{tuple(shape)} {dtype} on {value.device}"
    got = f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}" if isinstance(tensor, Tensor) else type(state).__name__
    if got != wanted:
        raise ValueError(
            f"{owner}: after {state.position} tokens the state of these inputs is {wanted}, got {got}; "
            f"start from initial_state({value.shape[0]}, dtype={value.dtype}, device={str(value.device)!r})"
        )
