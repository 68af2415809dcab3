# mypy: allow-untyped-defs, allow-incomplete-defs
# Kernel arguments are pointers and scalars that Triton types at the launch; a Python annotation could only be wrong.
"""Triton kernels for Y = E X along the length, without padding, and for the gradient of E, dE = Σ dY Xᵀ over the batch.

E has few rows and many columns, so Y has few tiles, and each is a long sum over positions. Several programs share a sum: they
write partial sums in single precision, which are added in a fixed order. Padded tokens are not read, so NaN in them has no
influence.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attn_zoo.kernels.linformer.tiles import head_start


@triton.jit
def project(
    projection_pointer,
    tokens_pointer,
    valid_pointer,
    out_pointer,
    projection_head_stride,
    projection_stride,
    tokens_batch_stride,
    tokens_head_stride,
    tokens_stride,
    valid_batch_stride,
    share_stride,
    rows,
    keys,
    width,
    heads,
    splits,
    chunks,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Triton kernel of the forward pass. One program sums one tile of E X of one head over several chunks of positions. It writes
    the sum to a tensor of shape (splits, batch, heads, rows, width).
    """
    row_tiles = tl.cdiv(rows, BLOCK_ROWS)
    width_tiles = tl.cdiv(width, BLOCK_WIDTH)
    program = tl.program_id(0)
    row = (program % row_tiles) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    program = program // row_tiles
    column = (program % width_tiles) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
    program = program // width_tiles
    split = program % splits
    head = program // splits
    projection_pointer += (head % heads).to(tl.int64) * projection_head_stride
    tokens_pointer += head_start(head, heads, tokens_batch_stride, tokens_head_stride)
    wide: tl.constexpr = tl.float64 if tokens_pointer.dtype.element_ty == tl.float64 else tl.float32
    out = tl.zeros((BLOCK_ROWS, BLOCK_WIDTH), wide)
    for chunk in tl.range(0, chunks, num_stages=STAGES):
        position = (split * chunks + chunk) * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
        there = position < keys
        projection = tl.load(
            projection_pointer + row[:, None].to(tl.int64) * projection_stride + position[None, :],
            mask=(row[:, None] < rows) & there[None, :],
            other=0.0,
        )
        if MASKED:
            valid = tl.load(valid_pointer + (head // heads).to(tl.int64) * valid_batch_stride + position, mask=there, other=0)
            there = there & (valid != 0)
        tokens = tl.load(
            tokens_pointer + position[:, None].to(tl.int64) * tokens_stride + column[None, :],
            mask=there[:, None] & (column[None, :] < width),
            other=0.0,
        )
        out += tl.dot(projection, tokens, input_precision=PRECISION)
    start = split.to(tl.int64) * share_stride + head.to(tl.int64) * rows * width
    tl.store(
        out_pointer + start + row[:, None] * width + column[None, :],
        out.to(out_pointer.dtype.element_ty),
        mask=(row[:, None] < rows) & (column[None, :] < width),
    )


@triton.jit
def project_backward_projection(
    grad_pointer,
    tokens_pointer,
    valid_pointer,
    out_pointer,
    grad_batch_stride,
    grad_head_stride,
    grad_stride,
    tokens_batch_stride,
    tokens_head_stride,
    tokens_stride,
    valid_batch_stride,
    share_stride,
    rows,
    keys,
    width,
    batch,
    splits,
    examples,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Triton kernel of the backward pass. One program sums one tile of dE, the gradient of E, of one head over several examples. It
    writes the sum to a tensor of shape (splits, heads, rows, keys).
    """
    row_tiles = tl.cdiv(rows, BLOCK_ROWS)
    key_tiles = tl.cdiv(keys, BLOCK_KEYS)
    program = tl.program_id(0)
    row = (program % row_tiles) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    program = program // row_tiles
    position = (program % key_tiles) * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
    program = program // key_tiles
    split = program % splits
    head = program // splits
    grad_pointer += head.to(tl.int64) * grad_head_stride
    tokens_pointer += head.to(tl.int64) * tokens_head_stride
    wide: tl.constexpr = tl.float64 if tokens_pointer.dtype.element_ty == tl.float64 else tl.float32
    out = tl.zeros((BLOCK_ROWS, BLOCK_KEYS), wide)
    width_tiles = tl.cdiv(width, BLOCK_WIDTH)
    steps = tl.minimum(examples, batch - split * examples) * width_tiles  # the last split may have fewer examples
    for step in tl.range(0, steps, num_stages=STAGES):
        example = (split * examples + step // width_tiles).to(tl.int64)
        column = (step % width_tiles) * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
        inside = column < width
        grad = tl.load(
            grad_pointer + example * grad_batch_stride + row[:, None].to(tl.int64) * grad_stride + column[None, :],
            mask=(row[:, None] < rows) & inside[None, :],
            other=0.0,
        )
        there = position < keys
        if MASKED:
            valid = tl.load(valid_pointer + example * valid_batch_stride + position, mask=there, other=0)
            there = there & (valid != 0)
        tokens = tl.load(
            tokens_pointer + example * tokens_batch_stride + position[:, None].to(tl.int64) * tokens_stride + column[None, :],
            mask=there[:, None] & inside[None, :],
            other=0.0,
        )
        out += tl.dot(grad, tl.trans(tokens), input_precision=PRECISION)
    start = split.to(tl.int64) * share_stride + head.to(tl.int64) * rows * keys
    tl.store(
        out_pointer + start + row[:, None].to(tl.int64) * keys + position[None, :],
        out.to(out_pointer.dtype.element_ty),
        mask=(row[:, None] < rows) & (position[None, :] < keys),
    )
