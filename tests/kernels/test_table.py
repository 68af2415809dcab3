"""The table has a tile for every problem, and work is split into whole steps that fill the GPU."""

from __future__ import annotations

import itertools

import pytest
import torch

from attn_zoo.kernels.linformer import table
from kernels.compile_table import entries

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dropout", [False, True])
def test_every_problem_has_tiles(dtype, dropout):
    for keys, dim in itertools.product((1, 16, 63, 64, 65, 128, 200, 256, 257, 5000), (1, 8, 16, 31, 32, 33, 48, 64, 80, 96, 128)):
        if table.on_chip(keys, dim, dtype, dropout):
            for kernel in ("attend", "attend_backward"):
                tile = table.whole_row_tile(kernel, keys, dim, dropout)
                assert tile.keys >= keys and tile.dim >= dim
        for kernel in ("attend_blocks", "attend_blocks_backward_query", "attend_blocks_backward_key_value"):
            assert table.block_tile(kernel, dim, dtype).dim >= dim
    for rows, width in itertools.product((1, 64, 65, 512), (1, 64, 65, 4096)):
        for kernel in ("project", "project_backward_projection"):
            assert rows > 64 or table.projection_tile(kernel, rows, width, dtype).rows <= 64


def test_the_papers_sizes_are_on_chip():
    """Linformer's projected lengths up to 256 with heads of 64, in half precision."""
    for keys in (64, 128, 256):
        assert table.on_chip(keys, 64, torch.bfloat16, dropout=False)
    assert not table.on_chip(257, 64, torch.bfloat16, dropout=False)
    assert not table.on_chip(256, 128, torch.bfloat16, dropout=False)
    assert not table.on_chip(64, 64, torch.float32, dropout=False)


def test_tiles_are_all_listed():
    """Every tile that a lookup can return is among those that the compiler test compiles."""
    listed = {(kernel, bits, random, tile) for kernel, bits, random, tile in entries()}
    for dtype, random, keys, dim in itertools.product(DTYPES[1:3], (False, True), (64, 128, 256, 512), (32, 64, 128)):
        bits = 8 * dtype.itemsize
        if table.on_chip(keys, dim, dtype, random):
            for kernel in ("attend", "attend_backward"):
                assert (kernel, bits, random, table.whole_row_tile(kernel, keys, dim, random)) in listed
        for kernel in ("attend_blocks", "attend_blocks_backward_query", "attend_blocks_backward_key_value"):
            assert (kernel, bits, random, table.block_tile(kernel, dim, dtype)) in listed
        for kernel in ("project", "project_backward_projection"):
            assert (kernel, bits, random, table.projection_tile(kernel, keys, dim, dtype)) in listed


@pytest.mark.parametrize("warps", [4, 8])
def test_work_is_cut_into_whole_steps(warps):
    places = 132 * 8 // warps
    for parts, steps in itertools.product((1, 2, 12, 24, 96, 131, 192, 264, 300, 5000), (1, 2, 7, 8, 64, 512, 1024)):
        splits, each = table.split(parts, steps, warps, 132)
        assert 1 <= splits <= steps
        assert (splits - 1) * each < steps <= splits * each, "a split has nothing to do, or something is left over"
        rounds = -(-parts * splits // places)
        alone = -(-parts // places)
        assert rounds * (each + 1) <= alone * (steps + 1), "cutting costs more than it gives"
        if parts * steps >= 2 * places:
            assert parts * splits >= 0.7 * places, "too few programs to fill the GPU"


def test_one_sequence_of_twelve_heads_fills_the_gpu():
    splits, _ = table.split(12, 65536 // 64, 4, 132)
    assert 12 * splits == pytest.approx(264, rel=0.05)
