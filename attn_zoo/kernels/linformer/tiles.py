# mypy: allow-untyped-defs, allow-incomplete-defs
# Kernel arguments are pointers and scalars that Triton types at the launch; a Python annotation could only be wrong.
"""Functions that several Triton kernels use: offsets of heads, loading and storing rows of a matrix, and the dropout mask."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def head_start(head, heads, batch_stride, head_stride):
    """Return the offset of the first element of head ``head``. Heads are numbered over the whole batch. The offset has 64 bits,
    because a tensor can hold more than 2³¹ elements.
    """
    return (head // heads).to(tl.int64) * batch_stride + (head % heads).to(tl.int64) * head_stride


@triton.jit
def load_rows(pointer, stride, rows, count, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """Return rows of a (count, DIM) matrix as a tile (rows, BLOCK_DIM). Outside of the matrix, values are zero."""
    columns = tl.arange(0, BLOCK_DIM)
    inside = rows[:, None] < count
    if DIM != BLOCK_DIM:
        inside = inside & (columns[None, :] < DIM)
    return tl.load(pointer + rows[:, None].to(tl.int64) * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def store_rows(pointer, stride, rows, count, values, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr):
    """Write a tile (rows, BLOCK_DIM) to rows of a (count, DIM) matrix, in the dtype of the matrix. Values outside of the matrix are
    not written.
    """
    columns = tl.arange(0, BLOCK_DIM)
    inside = rows[:, None] < count
    if DIM != BLOCK_DIM:
        inside = inside & (columns[None, :] < DIM)
    target = pointer + rows[:, None].to(tl.int64) * stride + columns[None, :]
    tl.store(target, values.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def keep_weights(seed_pointer, threshold, head, query, key, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    """Return the dropout mask of the tile (QUERIES, KEYS) that begins at (query, key). It is True for weights that are kept.
    ``query`` and ``key`` must be multiples of 16.

    The random numbers are 31 bits of Philox4x32-7 (Salmon et al. 2011: seven rounds are the fewest that pass BigCrush). They
    depend on the seed and the position alone, so every tile shape gives the same mask.
    """
    # One call gives four words. For the place (16 a + 8 x + i, 16 b + 8 y + j) it is called with (8 a + i, 8 b + j, head of the
    # batch, 0), and word x + 2 y is used. The matrix instruction leaves these four places in one thread, also in a transposed
    # tile, so no word has to move. No product of sizes can overflow.
    queries = query // 2 + tl.arange(0, QUERIES // 2)
    keys = key // 2 + tl.arange(0, KEYS // 2)
    a, b, c, d = tl.philox(tl.load(seed_pointer), queries[:, None], keys[None, :], head, 0, n_rounds=7)
    words = tl.join(tl.join(a, b), tl.join(c, d)).reshape(QUERIES // 16, 8, KEYS // 16, 8, 2, 2)
    words = words.permute(0, 4, 1, 2, 5, 3).reshape(QUERIES, KEYS)
    return (words >> 1).to(tl.int32) >= threshold
