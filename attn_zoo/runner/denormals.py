"""Denormal numbers of a processor, flushed to zero while a network is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def denormals_are_flushed() -> bool:
    """Tell whether this thread's processor gives zero in place of a denormal number, one below 2⁻¹²⁶ in float32."""
    return (torch.tensor(2.0**-140, dtype=torch.float32) * 0.5).item() == 0


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero in this thread, and in PyTorch's threads if they start within.

    Gradients that vanish become denormal, and arithmetic with denormal numbers is slow on a processor.
    """
    before = denormals_are_flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
