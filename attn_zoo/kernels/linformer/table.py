"""Sizes of the tiles of the Triton kernels, chosen from reports of the compiler. Nothing here was measured on a GPU.

A kernel with any of these sizes, compiled for sm_90, needs at most 227 KB of shared memory and fills the Hopper matrix
instruction. Its values stay in registers, with the exceptions that the tests list. There is no autotuning at run time.

Whole-row kernels hold all keys of a head on the chip. They serve 16-bit inputs with at most 256 keys if keys × head_dim, both
padded, is at most 256 × 64. With dropout, the limit is 128 × 64, because random words need registers, too. All other inputs
use blocks of keys. float32 inputs always use blocks, because a product in three tf32 parts needs three times the memory. float64
exists in the interpreter only, and always follows the rule for 16-bit inputs without dropout.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

HEAD_DIM_LIMIT = 128
PROCESSORS_WITHOUT_CUDA = 132
"""Number of streaming multiprocessors of an H100 or H200. Triton's interpreter splits work as these GPUs do."""


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """Sizes of the tile that an attention kernel handles in one step: numbers of queries and of keys."""

    queries: int
    keys: int
    dim: int
    warps: int
    stages: int

    def constants(self) -> dict[str, int]:
        """Return the tile sizes as arguments for launching the kernel."""
        sizes = {"BLOCK_QUERIES": self.queries, "BLOCK_KEYS": self.keys, "BLOCK_DIM": self.dim}
        return {**sizes, "STAGES": self.stages, "num_warps": self.warps}


@dataclass(frozen=True, slots=True)
class ProjectionTile:
    """Sizes of the tile that a projection kernel handles in one step: rows of E, positions, and channels of the tokens."""

    rows: int
    keys: int
    width: int
    warps: int
    stages: int

    def constants(self) -> dict[str, int]:
        """Return the tile sizes as arguments for launching the kernel."""
        sizes = {"BLOCK_ROWS": self.rows, "BLOCK_KEYS": self.keys, "BLOCK_WIDTH": self.width}
        return {**sizes, "STAGES": self.stages, "num_warps": self.warps}


WHOLE = {  # kernel -> (keys, dim): (queries, warps, stages)
    "attend": {
        (64, 32): (128, 4, 2),
        (64, 64): (128, 4, 2),
        (64, 128): (64, 4, 2),
        (128, 32): (128, 4, 2),
        (128, 64): (128, 4, 2),
        (128, 128): (64, 4, 2),
        (256, 32): (64, 4, 2),
        (256, 64): (64, 4, 2),
    },
    "attend_backward": {
        (64, 32): (64, 4, 2),
        (64, 64): (64, 4, 2),
        (64, 128): (64, 8, 2),
        (128, 32): (64, 8, 2),
        (128, 64): (64, 8, 2),
        (128, 128): (32, 8, 2),
        (256, 32): (64, 8, 2),
        (256, 64): (32, 8, 2),
    },
}
BLOCKS = {  # kernel -> (bits, dim): (queries, keys, warps, stages)
    "attend_blocks": {
        (16, 32): (128, 128, 8, 2),
        (16, 64): (128, 128, 8, 2),
        (16, 128): (128, 64, 8, 2),
        (32, 32): (64, 64, 4, 1),
        (32, 64): (64, 64, 4, 1),
        (32, 128): (64, 32, 4, 1),
    },
    "attend_blocks_backward_query": {
        (16, 32): (128, 64, 8, 2),
        (16, 64): (128, 64, 8, 2),
        (16, 128): (64, 64, 4, 2),
        (32, 32): (64, 64, 4, 1),
        (32, 64): (64, 32, 4, 2),
        (32, 128): (64, 32, 8, 1),
    },
    "attend_blocks_backward_key_value": {
        (16, 32): (64, 128, 8, 2),
        (16, 64): (64, 128, 8, 2),
        (16, 128): (64, 128, 8, 2),
        (32, 32): (32, 64, 4, 1),
        (32, 64): (32, 64, 8, 1),
        (32, 128): (32, 64, 8, 1),
    },
}
PROJECTION = {  # kernel -> (bits, few rows, narrow): (rows, keys, width, warps, stages)
    "project": {
        (16, False, False): (128, 64, 128, 8, 3),
        (16, False, True): (128, 64, 64, 4, 3),
        (16, True, False): (64, 64, 128, 4, 3),
        (16, True, True): (64, 64, 64, 4, 3),
        (32, False, False): (64, 32, 128, 4, 2),
        (32, False, True): (64, 32, 64, 4, 2),
    },
    "project_backward_projection": {
        (16, False, True): (128, 128, 64, 4, 3),
        (16, True, True): (64, 128, 64, 4, 3),
        (32, False, True): (64, 64, 32, 4, 2),
    },
}


def padded(size: int, least: int) -> int:
    """Return ``least``, doubled until it is at least ``size``. ``size`` can be symbolic."""
    while least < size:
        least *= 2
    return least


def on_chip(keys: int, dim: int, dtype: torch.dtype, dropout: bool) -> bool:
    """Return True if all keys of a head fit on the chip, so the whole-row kernels can be used."""
    if dtype == torch.float32:
        return False
    room = 128 * 64 if dropout and dtype != torch.float64 else 256 * 64
    return padded(keys, 64) <= 256 and padded(keys, 64) * padded(dim, 32) <= room


def whole_row_tile(kernel: str, keys: int, dim: int, dropout: bool) -> AttentionTile:
    """Return the tile sizes of a kernel that holds all keys of a head. Keys are padded to at least 64, because Hopper's matrix
    instruction needs 64 rows.
    """
    shape = padded(keys, 64), padded(dim, 32)
    queries, warps, stages = WHOLE[kernel][shape]
    return AttentionTile(queries, *shape, 8 if dropout else warps, stages)


def block_tile(kernel: str, dim: int, dtype: torch.dtype) -> AttentionTile:
    """Return the tile sizes of a kernel that reads the keys block by block."""
    queries, keys, warps, stages = BLOCKS[kernel][_bits(dtype), padded(dim, 32)]
    return AttentionTile(queries, keys, padded(dim, 32), warps, stages)


def projection_tile(kernel: str, rows: int, width: int, dtype: torch.dtype) -> ProjectionTile:
    """Return the tile sizes of a kernel that projects tokens along the length."""
    entries, bits = PROJECTION[kernel], _bits(dtype)
    few = bits == 16 and rows <= 64
    narrow = width <= 64 or (bits, few, False) not in entries
    return ProjectionTile(*entries[bits, few, narrow])


def processors(device: torch.device) -> int:
    """Return the number of streaming multiprocessors of the device."""
    if device.type != "cuda":
        return PROCESSORS_WITHOUT_CUDA
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.lru_cache(maxsize=1024)
def split(parts: int, steps: int, warps: int, processors: int) -> tuple[int, int]:
    """Return into how many programs each sum is split, and how many steps each program takes. There are ``parts`` sums; each of
    them has ``steps`` steps.

    The split with the shortest estimated time is chosen.
    """
    # A processor holds two programs of four warps, or one of eight. The estimated time is the number of waves of programs times
    # (the steps of a program + 1 for its start and end). Among equal times, the fewest splits are chosen, because they write the
    # fewest partial sums. Splitting never leads to more than two waves.
    places = processors * max(1, 8 // warps)
    most = max(1, min(steps, 2 * places // parts))
    splits = min(range(1, most + 1), key=lambda s: -(-parts * s // places) * (-(-steps // s) + 1))
    each = -(-steps // splits)
    return -(-steps // each), each


def _bits(dtype: torch.dtype) -> int:
    """Return the bits of an input for the look-up. It is 32 also for float64, which only the interpreter runs."""
    return 16 if dtype.itemsize == 2 else 32
