"""Handling of denormal numbers, which slow down a processor: they become zero while a network is trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from attn_zoo.process_state import flushes_denormals


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Return a context that sets denormal numbers to zero in this thread, and in PyTorch's threads if they start inside.

    Gradients that vanish become denormal, and arithmetic with denormal numbers is slow on a processor.
    """
    before = flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
