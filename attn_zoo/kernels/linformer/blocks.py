# mypy: allow-untyped-defs, allow-incomplete-defs
# Kernel arguments are pointers and scalars that Triton types at the launch; a Python annotation could only be wrong.
"""Triton kernels for O = softmax(Q Kᵀ / √d) V if the keys do not fit on the chip together. They read blocks of keys with an online
softmax.

As in FlashAttention, the forward pass updates a maximum and a sum from block to block. It saves L = log₂ Σⱼ 2^(Sᵢⱼ log₂e), where S
are the scores. With L, the backward pass computes any block of P = 2^(S log₂e − L) independently of the other blocks. It has two
kernels. Both kernels need δᵢ = Σⱼ Pᵢⱼ dPᵢⱼ, which equals dOᵢ · Oᵢ, also with dropout.

If the keys fit on the chip, use the kernels of ``attention`` instead. Their backward pass takes five matrix products instead
of seven.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attn_zoo.kernels.linformer.tiles import head_start, keep_weights, load_rows, store_rows


@triton.jit
def attend_blocks(
    query_pointer,
    key_pointer,
    value_pointer,
    out_pointer,
    normaliser_pointer,
    seed_pointer,
    query_batch_stride,
    query_head_stride,
    query_stride,
    key_batch_stride,
    key_head_stride,
    key_stride,
    value_batch_stride,
    value_head_stride,
    value_stride,
    out_batch_stride,
    queries,
    keys,
    heads,
    tiles,
    threshold,
    gain,
    DIM: tl.constexpr,
    SCALE: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    DROPOUT: tl.constexpr,
    FULL: tl.constexpr,
):
    """Triton kernel of the forward pass. One program computes the outputs of one tile of queries of one head. It also writes L, the
    base-2 logarithm of each query's softmax denominator, to a tensor of shape (batch · heads, queries).
    """
    head = tl.program_id(0) // tiles
    first = (tl.program_id(0) % tiles) * BLOCK_QUERIES
    rows = first + tl.arange(0, BLOCK_QUERIES)
    key_pointer += head_start(head, heads, key_batch_stride, key_head_stride)
    value_pointer += head_start(head, heads, value_batch_stride, value_head_stride)
    query_pointer += head_start(head, heads, query_batch_stride, query_head_stride)
    query = load_rows(query_pointer, query_stride, rows, queries, DIM, BLOCK_DIM)
    wide: tl.constexpr = tl.float64 if query_pointer.dtype.element_ty == tl.float64 else tl.float32
    peak = tl.full((BLOCK_QUERIES,), -float("inf"), wide)
    total = tl.zeros((BLOCK_QUERIES,), wide)
    out = tl.zeros((BLOCK_QUERIES, BLOCK_DIM), wide)
    for block in tl.range(0, keys, BLOCK_KEYS, num_stages=STAGES):
        columns = block + tl.arange(0, BLOCK_KEYS)
        key = load_rows(key_pointer, key_stride, columns, keys, DIM, BLOCK_DIM)
        value = load_rows(value_pointer, value_stride, columns, keys, DIM, BLOCK_DIM)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * SCALE
        if not FULL:
            score = tl.where(columns[None, :] < keys, score, -float("inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        shrink = tl.exp2(peak - higher)
        weight = tl.exp2(score - higher[:, None])
        total = total * shrink + tl.sum(weight, 1)
        if DROPOUT:
            keep = keep_weights(seed_pointer, threshold, head, first, block, BLOCK_QUERIES, BLOCK_KEYS)
            weight = tl.where(keep, weight, 0.0)
        out = out * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision=PRECISION)
        peak = higher
    tl.store(normaliser_pointer + head.to(tl.int64) * queries + rows, peak + tl.log2(total), mask=rows < queries)
    out_stride = heads * DIM
    out_pointer += head_start(head, heads, out_batch_stride, DIM)
    store_rows(out_pointer, out_stride, rows, queries, out * (gain / total)[:, None], DIM, BLOCK_DIM)


@triton.jit
def attend_blocks_backward_query(
    query_pointer,
    key_pointer,
    value_pointer,
    out_pointer,
    grad_pointer,
    normaliser_pointer,
    delta_pointer,
    grad_query_pointer,
    seed_pointer,
    query_batch_stride,
    query_head_stride,
    query_stride,
    key_batch_stride,
    key_head_stride,
    key_stride,
    value_batch_stride,
    value_head_stride,
    value_stride,
    grad_batch_stride,
    grad_head_stride,
    grad_stride,
    out_batch_stride,
    queries,
    keys,
    heads,
    tiles,
    threshold,
    gain,
    DIM: tl.constexpr,
    SCALE: tl.constexpr,
    ROOT: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    DROPOUT: tl.constexpr,
    FULL: tl.constexpr,
):
    """Triton kernel of the backward pass for queries. One program computes dQ, the gradient of one tile of queries of one head. It
    also writes δ, the dot product of the output and its gradient for each query. The other backward kernel needs δ.
    """
    head = tl.program_id(0) // tiles
    first = (tl.program_id(0) % tiles) * BLOCK_QUERIES
    rows = first + tl.arange(0, BLOCK_QUERIES)
    key_pointer += head_start(head, heads, key_batch_stride, key_head_stride)
    value_pointer += head_start(head, heads, value_batch_stride, value_head_stride)
    query_pointer += head_start(head, heads, query_batch_stride, query_head_stride)
    grad_pointer += head_start(head, heads, grad_batch_stride, grad_head_stride)
    out_stride = heads * DIM
    start_of_head = head_start(head, heads, out_batch_stride, DIM)
    query = load_rows(query_pointer, query_stride, rows, queries, DIM, BLOCK_DIM)
    grad = load_rows(grad_pointer, grad_stride, rows, queries, DIM, BLOCK_DIM)
    out = load_rows(out_pointer + start_of_head, out_stride, rows, queries, DIM, BLOCK_DIM)
    wide: tl.constexpr = tl.float64 if query_pointer.dtype.element_ty == tl.float64 else tl.float32
    delta = tl.sum(out.to(wide) * grad.to(wide), 1)
    per_query = head.to(tl.int64) * queries + rows
    tl.store(delta_pointer + per_query, delta, mask=rows < queries)
    normaliser = tl.load(normaliser_pointer + per_query, mask=rows < queries, other=float("inf"))
    grad_query = tl.zeros((BLOCK_QUERIES, BLOCK_DIM), wide)
    for block in tl.range(0, keys, BLOCK_KEYS, num_stages=STAGES):
        columns = block + tl.arange(0, BLOCK_KEYS)
        key = load_rows(key_pointer, key_stride, columns, keys, DIM, BLOCK_DIM)
        value = load_rows(value_pointer, value_stride, columns, keys, DIM, BLOCK_DIM)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * SCALE
        if not FULL:
            score = tl.where(columns[None, :] < keys, score, -float("inf"))
        weight = tl.exp2(score - normaliser[:, None])
        grad_weight = tl.dot(grad, tl.trans(value), input_precision=PRECISION)
        if DROPOUT:
            keep = keep_weights(seed_pointer, threshold, head, first, block, BLOCK_QUERIES, BLOCK_KEYS)
            grad_weight = tl.where(keep, grad_weight * gain, 0.0)
        grad_score = (weight * (grad_weight - delta[:, None]) * ROOT).to(query.dtype)
        grad_query += tl.dot(grad_score, key, input_precision=PRECISION)
    store_rows(grad_query_pointer + start_of_head, out_stride, rows, queries, grad_query, DIM, BLOCK_DIM)


@triton.jit
def attend_blocks_backward_key_value(
    query_pointer,
    key_pointer,
    value_pointer,
    grad_pointer,
    normaliser_pointer,
    delta_pointer,
    grad_key_pointer,
    grad_value_pointer,
    seed_pointer,
    query_batch_stride,
    query_head_stride,
    query_stride,
    key_batch_stride,
    key_head_stride,
    key_stride,
    value_batch_stride,
    value_head_stride,
    value_stride,
    grad_batch_stride,
    grad_head_stride,
    grad_stride,
    share_batch_stride,
    share_stride,
    queries,
    keys,
    heads,
    splits,
    tiles,
    threshold,
    gain,
    DIM: tl.constexpr,
    SCALE: tl.constexpr,
    ROOT: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    DROPOUT: tl.constexpr,
    FULL: tl.constexpr,
):
    """Triton kernel of the backward pass for keys and values. One program sums dK and dV, the gradients of one block of keys and
    values, over several tiles of queries. It writes the sums to tensors of shape (splits, batch, keys, heads, DIM).
    """
    blocks = tl.cdiv(keys, BLOCK_KEYS)
    block = (tl.program_id(0) % blocks) * BLOCK_KEYS
    columns = block + tl.arange(0, BLOCK_KEYS)
    head = tl.program_id(0) // blocks // splits
    split = tl.program_id(0) // blocks % splits
    query_pointer += head_start(head, heads, query_batch_stride, query_head_stride)
    key_pointer += head_start(head, heads, key_batch_stride, key_head_stride)
    value_pointer += head_start(head, heads, value_batch_stride, value_head_stride)
    grad_pointer += head_start(head, heads, grad_batch_stride, grad_head_stride)
    key = load_rows(key_pointer, key_stride, columns, keys, DIM, BLOCK_DIM)
    value = load_rows(value_pointer, value_stride, columns, keys, DIM, BLOCK_DIM)
    wide: tl.constexpr = tl.float64 if query_pointer.dtype.element_ty == tl.float64 else tl.float32
    grad_key = tl.zeros((BLOCK_KEYS, BLOCK_DIM), wide)
    grad_value = tl.zeros((BLOCK_KEYS, BLOCK_DIM), wide)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        first = (split * tiles + tile) * BLOCK_QUERIES
        rows = first + tl.arange(0, BLOCK_QUERIES)
        query = load_rows(query_pointer, query_stride, rows, queries, DIM, BLOCK_DIM)
        grad = load_rows(grad_pointer, grad_stride, rows, queries, DIM, BLOCK_DIM)
        per_query = head.to(tl.int64) * queries + rows
        normaliser = tl.load(normaliser_pointer + per_query, mask=rows < queries, other=float("inf"))
        delta = tl.load(delta_pointer + per_query, mask=rows < queries, other=0.0)
        score = tl.dot(key, tl.trans(query), input_precision=PRECISION) * SCALE
        if not FULL:
            score = tl.where(columns[:, None] < keys, score, -float("inf"))
        weight = tl.exp2(score - normaliser[None, :])
        grad_weight = tl.dot(value, tl.trans(grad), input_precision=PRECISION)
        if DROPOUT:
            keep = tl.trans(keep_weights(seed_pointer, threshold, head, first, block, BLOCK_QUERIES, BLOCK_KEYS))
            grad_weight = tl.where(keep, grad_weight * gain, 0.0)
            kept = tl.where(keep, weight, 0.0)
        else:
            kept = weight
        grad_value += tl.dot(kept.to(grad.dtype), grad, input_precision=PRECISION)
        grad_score = (weight * (grad_weight - delta[None, :]) * ROOT).to(query.dtype)
        grad_key += tl.dot(grad_score, query, input_precision=PRECISION)
    out_stride = heads * DIM
    start = split.to(tl.int64) * share_stride + head_start(head, heads, share_batch_stride, DIM)
    store_rows(grad_key_pointer + start, out_stride, columns, keys, grad_key, DIM, BLOCK_DIM)
    store_rows(grad_value_pointer + start, out_stride, columns, keys, grad_value * gain, DIM, BLOCK_DIM)
