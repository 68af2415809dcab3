"""Random number generators of a run: their states, and the draws that several processes share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_SHARED = (torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal)


def generator_states(device: torch.device) -> list[Tensor]:
    """States of the generators that a run on ``device`` draws from: the CPU's and, on a GPU, that GPU's."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_generator_states(device: torch.device, states: Sequence[Tensor]) -> None:
    """Set the generators to ``states``, as returned by ``generator_states``."""
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


class SharedDraws(TorchFunctionMode):
    """Context in which new random tensors are equal in all processes, while each process draws its own dropout masks.

    A mechanism that redraws, such as Performer's random features, calls ``torch.randn`` or the like; every process must get the
    numbers that a single process would get. Dropout draws in place, or inside an operator, from the process's own generator.

    Args:
        seed: seed of the run.
        index: index of the process.
        device: device of the run.
    """

    def __init__(self, seed: int, index: int, device: torch.device) -> None:
        super().__init__()
        self._device = device
        torch.manual_seed(seed)
        self.states = generator_states(device)
        torch.manual_seed(seed + (index + 1) * 0x9E3779B9)  # far from the seeds of other runs

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func not in _SHARED:
            return func(*args, **(kwargs or {}))
        own = generator_states(self._device)
        set_generator_states(self._device, self.states)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.states = generator_states(self._device)
            set_generator_states(self._device, own)
