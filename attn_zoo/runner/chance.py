"""States of the random generators that a run uses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def generator_states(device: torch.device) -> list[Tensor]:
    """Return the states of the random generators that a run on ``device`` uses: those of the CPU and, on a GPU, also those of
    the GPU."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_generator_states(device: torch.device, states: Sequence[Tensor]) -> None:
    """Set the random generators to ``states``, which ``generator_states`` returned."""
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
