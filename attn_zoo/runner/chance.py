"""States of the random number generators of a run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def generator_states(device: torch.device) -> list[Tensor]:
    """States of the generators that a run on ``device`` draws from: the CPU's and, on a GPU, that GPU's."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_generator_states(device: torch.device, states: Sequence[Tensor]) -> None:
    """Set the generators to ``states``, as returned by ``generator_states``."""
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
