"""Context in which the processor rounds denormal (extremely small) numbers to zero, because it computes slowly with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from attn_zoo.process_state import flushes_denormals


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Return a context in which this thread rounds denormal numbers to zero. Threads of PyTorch that start inside the context do so
    as well."""
    before = flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
