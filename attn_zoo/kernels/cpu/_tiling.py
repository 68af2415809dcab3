"""Tiling: temporary tensors must still be in the cache of the processor when the next step reads them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

CHEAP_BYTES = 16 * 2**20
"""Half of glibc's largest mmap threshold, which is 32 MiB. Each allocation above the threshold causes new page faults, which cost
several times the arithmetic on this memory. The other half is left to other temporary tensors.
"""

BLOCK = CHEAP_BYTES // 4 // 4
"""Number of float32 scores in a block of rows. About four temporaries of that size are alive at a time."""

CACHE_BYTES = 2**20
"""Bytes of the largest temporary of a step on a CPU. At 4,096 tokens, attention within buckets took a fifth longer with a quarter
of these bytes (more calls), and up to a tenth longer with four times as many (cache misses). Random features took equally long with
all three sizes.
"""

DEVICE_BYTES = 2**26
"""Bytes of the largest temporary of a step on other devices, where each step costs the launch of a kernel."""


def step_bytes(device: torch.device) -> int:
    """Return the bytes of the largest temporary tensor of a step on a device. ``meta`` counts as a CPU."""
    return CACHE_BYTES if device.type in ("cpu", "meta") else DEVICE_BYTES


def sequences(batch: int, heads: int, bytes_each: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Return slices of examples and heads, one per step. A sequence is one head of one example; its temporary tensors take
    ``bytes_each`` bytes.

    A step takes some heads of one example, or, if sequences are short, all heads of some examples.
    """
    if torch.compiler.is_compiling():  # the compiler tiles, and a loop would hold for one length
        yield slice(None), slice(None)
        return
    together = max(1, step_bytes(device) // max(1, bytes_each))
    examples, beside = max(1, together // heads), min(heads, together)
    for example in range(0, batch, examples):
        for head in range(0, heads, beside):
            yield slice(example, example + examples), slice(head, head + beside)


def rows_of_step(length: int, row_bytes: int, device: torch.device) -> Iterator[slice]:
    """Return slices of rows, one per step. The temporary tensors of a row take ``row_bytes`` bytes."""
    if torch.compiler.is_compiling():
        return iter([slice(0, length)])
    step = max(1, step_bytes(device) // max(1, row_bytes))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def row_blocks(queries: int, keys: int, causal: bool) -> Iterator[tuple[int, int, int]]:
    """Return the start and end of each block of queries, and how many keys the block can see."""
    rows = max(1, BLOCK // keys)
    for start in range(0, queries, rows):
        end = min(start + rows, queries)
        yield start, end, end if causal else keys


def score_blocks(
    query: Float[Tensor, "s queries d"], key: Float[Tensor, "s keys d"], causal: bool
) -> Iterator[tuple[slice, slice, slice]]:
    """Return slices of sequences, queries and keys for each block of ``BLOCK`` scores. A block can hold several short sequences."""
    if exported() and not causal:
        yield slice(None), slice(0, query.shape[1]), slice(0, key.shape[1])
        return
    for start, end, seen in row_blocks(query.shape[1], key.shape[1], causal):
        together = query.shape[0] if exported() else max(1, BLOCK // ((end - start) * seen))
        for first in range(0, query.shape[0], together):
            yield slice(first, first + together), slice(start, end), slice(0, seen)


def like_tokens(x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n d"]:
    """Return an empty tensor of the shape of ``x`` with the memory order (batch, n, heads, d), so that the layer joins its heads
    without a copy.
    """
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)


def exported() -> bool:
    """Return True while torch.export traces the run. Tiles must then not depend on sizes, which must stay dynamic."""
    return torch.compiler.is_exporting()
