# mypy: allow-untyped-defs, allow-incomplete-defs
# Kernel arguments are pointers and scalars that Triton types at the launch; a Python annotation could only be wrong.
"""Triton kernels for O = softmax(Q Kᵀ / √d) V with all keys of a head on the chip: forward, and backward in one pass.

A tile holds the whole rows of the weights P of its queries, so the softmax takes one pass. The backward pass recomputes P and
δᵢ = Σⱼ Pᵢⱼ dPᵢⱼ, so it needs neither O nor the denominator of the softmax. With W = dropout(P):

    dV = Wᵀ dO    dW = dO Vᵀ    dP = dropout(dW)    dS = P ∘ (dP − δ)    dQ = dS K / √d    dK = dSᵀ Q / √d

The backward pass works on Pᵀ, whose rows are the keys. Keys are padded to at least 64, because Hopper's matrix instruction
needs 64 rows. dK and dV stay in registers while a program loops over its part of the queries. The partial sums of all programs
are added afterwards in a fixed order, so the result does not depend on timing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attn_zoo.kernels.linformer.tiles import head_start, keep_weights, load_rows, store_rows


@triton.jit
def attend(
    query_pointer,
    key_pointer,
    value_pointer,
    out_pointer,
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
    splits,
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
    """Triton kernel of the forward pass. One program computes the outputs of several tiles of queries of one head. SCALE is log₂e /
    √d, where d is DIM, because exp₂ is cheaper than exp.
    """
    head = tl.program_id(0) // splits
    split = tl.program_id(0) % splits
    query_pointer += head_start(head, heads, query_batch_stride, query_head_stride)
    key_pointer += head_start(head, heads, key_batch_stride, key_head_stride)
    value_pointer += head_start(head, heads, value_batch_stride, value_head_stride)
    out_stride = heads * DIM
    out_pointer += head_start(head, heads, out_batch_stride, DIM)
    columns = tl.arange(0, BLOCK_KEYS)
    key = load_rows(key_pointer, key_stride, columns, keys, DIM, BLOCK_DIM)
    value = load_rows(value_pointer, value_stride, columns, keys, DIM, BLOCK_DIM)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        first = (split * tiles + tile) * BLOCK_QUERIES
        rows = first + tl.arange(0, BLOCK_QUERIES)
        query = load_rows(query_pointer, query_stride, rows, queries, DIM, BLOCK_DIM)
        score = tl.dot(query, tl.trans(key), input_precision=PRECISION) * SCALE
        if not FULL:
            score = tl.where(columns[None, :] < keys, score, -float("inf"))
        weight = tl.exp2(score - tl.max(score, 1)[:, None])
        total = tl.sum(weight, 1)
        if DROPOUT:
            keep = keep_weights(seed_pointer, threshold, head, first, 0, BLOCK_QUERIES, BLOCK_KEYS)
            weight = tl.where(keep, weight, 0.0)
        out = tl.dot(weight.to(value.dtype), value, input_precision=PRECISION) * (gain / total)[:, None]
        store_rows(out_pointer, out_stride, rows, queries, out, DIM, BLOCK_DIM)


@triton.jit
def attend_backward(
    query_pointer,
    key_pointer,
    value_pointer,
    grad_pointer,
    grad_query_pointer,
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
    grad_query_batch_stride,
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
    """Triton kernel of the backward pass. One program handles several tiles of queries of one head. It writes dQ. It also writes dK
    and dV, its sums for the gradients of keys and values, to tensors of shape (splits, batch, keys, heads, DIM).

    SCALE is log₂e / √d and ROOT is 1 / √d, where d is DIM.
    """
    head = tl.program_id(0) // splits
    split = tl.program_id(0) % splits
    query_pointer += head_start(head, heads, query_batch_stride, query_head_stride)
    key_pointer += head_start(head, heads, key_batch_stride, key_head_stride)
    value_pointer += head_start(head, heads, value_batch_stride, value_head_stride)
    grad_pointer += head_start(head, heads, grad_batch_stride, grad_head_stride)
    out_stride = heads * DIM
    grad_query_pointer += head_start(head, heads, grad_query_batch_stride, DIM)
    columns = tl.arange(0, BLOCK_KEYS)
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
        score = tl.dot(key, tl.trans(query), input_precision=PRECISION) * SCALE
        if not FULL:
            score = tl.where(columns[:, None] < keys, score, -float("inf"))
        weight = tl.exp2(score - tl.max(score, 0)[None, :])
        weight = weight * (1.0 / tl.sum(weight, 0))[None, :]
        grad_weight = tl.dot(value, tl.trans(grad), input_precision=PRECISION)
        if DROPOUT:
            keep = tl.trans(keep_weights(seed_pointer, threshold, head, first, 0, BLOCK_QUERIES, BLOCK_KEYS))
            grad_weight = tl.where(keep, grad_weight * gain, 0.0)
            kept = tl.where(keep, weight, 0.0)
        else:
            kept = weight
        grad_value += tl.dot(kept.to(grad.dtype), grad, input_precision=PRECISION)
        delta = tl.sum(weight * grad_weight, 0)
        grad_score = (weight * (grad_weight - delta[None, :]) * ROOT).to(query.dtype)
        grad_key += tl.dot(grad_score, query, input_precision=PRECISION)
        if BLOCK_DIM >= 64:  # the matrix instruction needs 64 rows, which only the width provides here
            grad_query = tl.trans(tl.dot(tl.trans(key), grad_score, input_precision=PRECISION))
        else:
            grad_query = tl.dot(tl.trans(grad_score), key, input_precision=PRECISION)
        store_rows(grad_query_pointer, out_stride, rows, queries, grad_query, DIM, BLOCK_DIM)
    start = split.to(tl.int64) * share_stride + head_start(head, heads, share_batch_stride, DIM)
    store_rows(grad_key_pointer + start, out_stride, columns, keys, grad_key, DIM, BLOCK_DIM)
    store_rows(grad_value_pointer + start, out_stride, columns, keys, grad_value * gain, DIM, BLOCK_DIM)
