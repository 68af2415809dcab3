"""Cutting long sequences into blocks whose temporaries stay cheap to allocate."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

CHEAP_BYTES = 16 * 2**20
"""Half of glibc's largest mmap threshold (32 MiB): above that, each allocation is page-faulted anew,
which costs several times the arithmetic done on it. A block keeps to half, for what stands beside it."""


def exported() -> bool:
    """Whether this run is captured as a program for another runtime, whose sizes are to stay open: nothing is cut by them then."""
    return torch.compiler.is_exporting()


def row_blocks(query: Float[Tensor, "batch heads queries head_dim"], columns: int) -> tuple[Tensor, ...]:
    """Split queries so that a (batch, heads, rows, columns) temporary of a block stays below ``CHEAP_BYTES``."""
    if exported():
        return (query,)
    batch, heads = query.shape[:2]
    return query.split(rows_of_block(batch * heads * columns * query.element_size()), dim=2)


def rows_of_block(row_bytes: int) -> int:
    """How many rows of so many bytes a block holds, at least one."""
    return max(1, CHEAP_BYTES // max(1, row_bytes))
