"""Sizes of tiles. The temporary tensors of a tile must still be in the processor's cache when the next step reads them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

CHEAP_BYTES = 16 * 2**20
"""Bytes that temporary tensors may take without page faults. This is half of glibc's largest mmap threshold; each allocation
above the threshold causes page faults.
"""
# Page faults took several times as long as the arithmetic on this memory.

BLOCK = CHEAP_BYTES // 4 // 4
"""Number of float32 scores in a block of rows. About four temporary tensors of that size exist at a time."""

# At 4,096 tokens, attention within buckets took a fifth longer with a quarter of these bytes (more calls), and up to a tenth longer
# with four times as many (cache misses). Random features took equally long with all three sizes.
CACHE_BYTES = 2**20
"""Bytes of the largest temporary tensor of a step on a CPU."""

DEVICE_BYTES = 2**26
"""Bytes of the largest temporary tensor of a step on other devices. It is larger than on a CPU, because each step launches a
kernel.
"""


def step_bytes(device: torch.device) -> int:
    """Return how many bytes the largest temporary tensor of a step may have on a device. The device ``meta`` counts as a CPU."""
    return CACHE_BYTES if device.type in ("cpu", "meta") else DEVICE_BYTES


def sequences(batch: int, heads: int, bytes_each: int, device: torch.device) -> Iterator[tuple[slice, slice]]:
    """Return a slice of examples and a slice of heads for each step. A sequence is one head of one example; its largest
    temporary tensor takes ``bytes_each`` bytes.

    A step handles some heads of one example or, if sequences are short, all heads of some examples.
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
    """Return a slice of rows for each step. The largest temporary tensor takes ``row_bytes`` bytes per row."""
    if torch.compiler.is_compiling():
        return iter([slice(0, length)])
    step = max(1, step_bytes(device) // max(1, row_bytes))
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def row_blocks(queries: int, keys: int, causal: bool) -> Iterator[tuple[int, int, int]]:
    """Return three numbers for each block of queries: its start, its end, and how many keys its queries can see."""
    rows = max(1, BLOCK // keys)
    for start in range(0, queries, rows):
        end = min(start + rows, queries)
        yield start, end, end if causal else keys


def score_blocks(
    query: Float[Tensor, "s queries d"], key: Float[Tensor, "s keys d"], causal: bool
) -> Iterator[tuple[slice, slice, slice]]:
    """Return three slices for each block of about ``BLOCK`` scores: of sequences, of queries and of keys. A block can hold several
    sequences.
    """
    if exported() and not causal:
        yield slice(None), slice(0, query.shape[1]), slice(0, key.shape[1])
        return
    for start, end, seen in row_blocks(query.shape[1], key.shape[1], causal):
        together = query.shape[0] if exported() else max(1, BLOCK // ((end - start) * seen))
        for first in range(0, query.shape[0], together):
            yield slice(first, first + together), slice(start, end), slice(0, seen)


def like_tokens(x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n d"]:
    """Return an empty tensor of the shape of ``x`` with the memory order (batch, n, heads, d), so that the layer can join its
    heads without a copy.
    """
    return x.new_empty(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2)


def exported() -> bool:
    """Return True while torch.export traces the call. Tiles must then not depend on sizes, because the exported program runs at
    other sizes, too.
    """
    return torch.compiler.is_exporting()
