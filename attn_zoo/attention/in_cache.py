"""Work cut so that what one step makes for the next is still in a processor's cache when the next one reads it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.attention.blocks import exported

CACHE_BYTES = 2**20
"""Of the longest temporary of a step on a CPU. Attention within buckets at 4,096 tokens took a fifth longer with a quarter as
much, for the calls, and up to a tenth with four times as much, for the cache; random features did not tell them apart."""

DEVICE_BYTES = 2**26
"""The same elsewhere, where a step costs the launch of a kernel whatever its size."""


def step_bytes(device: torch.device) -> int:
    """How long a temporary of a step should be. What would be computed on ``meta`` is counted as on a CPU."""
    return CACHE_BYTES if device.type in ("cpu", "meta") else DEVICE_BYTES


def sequences(batch: int, heads: int, bytes_each: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Examples and heads whose sequences are taken together, where each of them has temporaries of ``bytes_each``.

    They are many where sequences are short: some heads of one example, or all heads of some.
    """
    if exported():
        yield slice(None), slice(None)
        return
    together = max(1, step_bytes(device) // max(1, bytes_each))
    examples, beside = max(1, together // heads), min(heads, together)
    for example in range(0, batch, examples):
        for head in range(0, heads, beside):
            yield slice(example, example + examples), slice(head, head + beside)


def rows_of_step(length: int, row_bytes: int, device: torch.device) -> Iterator[slice]:
    """Rows of a step, where each of them has temporaries of ``row_bytes``."""
    if exported():
        return iter([slice(0, length)])
    step = max(1, step_bytes(device) // max(1, row_bytes))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def like_tokens(x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n d"]:
    """Uninitialised, its heads beside each other in memory as the layer joins and splits them: without a copy."""
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)
