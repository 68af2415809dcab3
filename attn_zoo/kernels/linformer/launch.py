"""Functions that launch the Triton kernels. They compute sizes and strides, and add up partial sums. The module ``functions`` has
already checked the inputs.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from attn_zoo.kernels.linformer import attention, blocks, projection, table
from attn_zoo.shapes import Compressed, KeyValid, Queries

ByPosition = Float[Tensor, "batch queries heads head_dim"]
"""Outputs, or gradients of outputs, of shape (batch, queries, heads, head_dim)."""
Seed = Int[Tensor, ""] | None
"""Seed of the dropout mask. None without dropout."""

INTERPRETED = not isinstance(attention.attend, triton.JITFunction)
"""True if TRITON_INTERPRET=1 is in the environment. Triton then runs kernels in its interpreter, on any device."""

if isinstance(tl.philox, triton.JITFunction) is INTERPRETED:
    raise RuntimeError("TRITON_INTERPRET changed after triton was imported; set it before anything imports triton")


def attend(query: Queries, key: Compressed, value: Compressed, seed: Seed, dropout: float) -> ByPosition:
    """Return the outputs of the forward kernel that holds whole rows of weights on the chip."""
    query, key, value = map(_with_unit_stride, (query, key, value))
    batch, heads, queries, dim = query.shape
    out = _empty(query, batch, queries, heads, dim)
    if out.numel() == 0:
        return out
    tile = table.whole_row_tile("attend", key.shape[2], dim, dropout > 0)
    splits, tiles = _split(batch * heads, queries, tile.queries, tile.warps, query.device)
    with torch.cuda.device_of(query):
        attention.attend[(batch * heads * splits,)](
            *(query, key, value, out, seed, *_strides(query, key, value), out.stride(0)),
            *(queries, key.shape[2], heads, splits, tiles, *_threshold_and_gain(dropout)),
            **_constants(tile, query, key, dropout),
        )
    return out


def attend_backward(
    grad: ByPosition, query: Queries, key: Compressed, value: Compressed, seed: Seed, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value for ``attend``, each of shape (batch, length, heads, head_dim)."""
    grad, query, key, value = map(_with_unit_stride, (grad.transpose(1, 2), query, key, value))
    batch, heads, queries, dim = query.shape
    grad_query = _empty(query, batch, queries, heads, dim)
    if grad_query.numel() == 0:
        return grad_query, *_zeros_like_keys(key)
    tile = table.whole_row_tile("attend_backward", key.shape[2], dim, dropout > 0)
    splits, tiles = _split(batch * heads, queries, tile.queries, tile.warps, query.device)
    grad_key, grad_value = (_shares(splits, key, batch, key.shape[2], heads, dim) for _ in range(2))
    with torch.cuda.device_of(query):
        attention.attend_backward[(batch * heads * splits,)](
            *(query, key, value, grad, grad_query, grad_key, grad_value, seed),
            *_strides(query, key, value, grad),
            *(grad_query.stride(0), grad_key.stride(1), grad_key.stride(0)),
            *(queries, key.shape[2], heads, splits, tiles, *_threshold_and_gain(dropout)),
            ROOT=dim**-0.5,
            **_constants(tile, query, key, dropout),
        )
    return grad_query, _sum(grad_key, key.dtype), _sum(grad_value, value.dtype)


def attend_blocks(
    query: Queries, key: Compressed, value: Compressed, seed: Seed, dropout: float
) -> tuple[ByPosition, Float[Tensor, "batch heads queries"]]:
    """Return the output, computed in blocks of keys, and the base-2 logarithm of the denominator of the softmax. The backward pass
    needs both.
    """
    query, key, value = map(_with_unit_stride, (query, key, value))
    batch, heads, queries, dim = query.shape
    out = _empty(query, batch, queries, heads, dim)
    normaliser = _empty(query, batch, heads, queries, dtype=_wide(query.dtype))
    if out.numel() == 0:
        return out, normaliser
    tile = table.block_tile("attend_blocks", dim, query.dtype)
    tiles = triton.cdiv(queries, tile.queries)
    with torch.cuda.device_of(query):
        blocks.attend_blocks[(batch * heads * tiles,)](
            *(query, key, value, out, normaliser, seed, *_strides(query, key, value), out.stride(0)),
            *(queries, key.shape[2], heads, tiles, *_threshold_and_gain(dropout)),
            **_constants(tile, query, key, dropout),
        )
    return out, normaliser


def attend_blocks_backward(
    grad: ByPosition,
    query: Queries,
    key: Compressed,
    value: Compressed,
    out: ByPosition,
    normaliser: Float[Tensor, "batch heads queries"],
    seed: Seed,
    dropout: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value for ``attend_blocks``, each of shape (batch, length, heads, head_dim)."""
    grad, query, key, value = map(_with_unit_stride, (grad.transpose(1, 2), query, key, value))
    batch, heads, queries, dim = query.shape
    keys, device = key.shape[2], query.device
    grad_query = _empty(query, batch, queries, heads, dim)
    if grad_query.numel() == 0:
        return grad_query, *_zeros_like_keys(key)
    delta = _empty(normaliser, *normaliser.shape)
    strides = _strides(query, key, value, grad)
    with torch.cuda.device_of(query):
        tile = table.block_tile("attend_blocks_backward_query", dim, query.dtype)
        tiles = triton.cdiv(queries, tile.queries)
        blocks.attend_blocks_backward_query[(batch * heads * tiles,)](
            *(query, key, value, out, grad, normaliser, delta, grad_query, seed, *strides, grad_query.stride(0)),
            *(queries, keys, heads, tiles, *_threshold_and_gain(dropout)),
            ROOT=dim**-0.5,
            **_constants(tile, query, key, dropout),
        )
        tile = table.block_tile("attend_blocks_backward_key_value", dim, query.dtype)
        parts = batch * heads * triton.cdiv(keys, tile.keys)
        splits, tiles = _split(parts, queries, tile.queries, tile.warps, device)
        grad_key, grad_value = (_shares(splits, key, batch, keys, heads, dim) for _ in range(2))
        blocks.attend_blocks_backward_key_value[(parts * splits,)](
            *(query, key, value, grad, normaliser, delta, grad_key, grad_value, seed, *strides),
            *(grad_key.stride(1), grad_key.stride(0)),
            *(queries, keys, heads, splits, tiles, *_threshold_and_gain(dropout)),
            ROOT=dim**-0.5,
            **_constants(tile, query, key, dropout),
        )
    return grad_query, _sum(grad_key, key.dtype), _sum(grad_value, value.dtype)


def project(
    matrix: Float[Tensor, "heads r keys"], tokens: Float[Tensor, "batch heads keys width"], key_valid: KeyValid
) -> Float[Tensor, "batch heads r width"]:
    """Return E X for every head, where E is ``matrix`` and X are the tokens. Padded tokens are left out."""
    matrix, tokens = map(_with_unit_stride, (matrix, tokens))
    batch, heads, keys, width = tokens.shape
    rows = matrix.shape[1]
    if 0 in (batch, heads, keys, width):
        return tokens.new_zeros(batch, heads, rows, width)
    tile = table.projection_tile("project", rows, width, tokens.dtype)
    parts = batch * heads * triton.cdiv(rows, tile.rows) * triton.cdiv(width, tile.width)
    splits, chunks = _split(parts, keys, tile.keys, tile.warps, tokens.device)
    out = _shares(splits, tokens, batch, heads, rows, width)
    with torch.cuda.device_of(tokens):
        projection.project[(parts * splits,)](
            *(matrix, tokens, _as_bytes(key_valid), out, matrix.stride(0), matrix.stride(1), *_strides(tokens)),
            *(0 if key_valid is None else keys, out.stride(0), rows, keys, width, heads, splits, chunks),
            **tile.constants(),
            PRECISION=_precision(tokens.dtype),
            MASKED=key_valid is not None,
        )
    return _sum(out, tokens.dtype)


def project_backward_projection(
    grad: Float[Tensor, "batch heads r width"], tokens: Float[Tensor, "batch heads keys width"], key_valid: KeyValid
) -> Float[Tensor, "heads r keys"]:
    """Return the gradient of E: dY Xᵀ, summed over the batch, where dY is ``grad`` and X are the tokens. Padded tokens are left
    out.
    """
    grad, tokens = map(_with_unit_stride, (grad, tokens))
    batch, heads, keys, width = tokens.shape
    rows = grad.shape[2]
    if 0 in (batch, heads, keys, width):
        return tokens.new_zeros(heads, rows, keys)
    tile = table.projection_tile("project_backward_projection", rows, width, tokens.dtype)
    parts = heads * triton.cdiv(rows, tile.rows) * triton.cdiv(keys, tile.keys)
    splits, examples = table.split(parts, batch, tile.warps, table.processors(tokens.device))
    out = _shares(splits, tokens, heads, rows, keys)
    with torch.cuda.device_of(tokens):
        projection.project_backward_projection[(parts * splits,)](
            *(grad, tokens, _as_bytes(key_valid), out, *_strides(grad, tokens)),
            *(0 if key_valid is None else keys, out.stride(0), rows, keys, width, batch, splits, examples),
            **tile.constants(),
            PRECISION=_precision(tokens.dtype),
            MASKED=key_valid is not None,
        )
    return _sum(out, tokens.dtype)


def _with_unit_stride(tensor: Tensor) -> Tensor:
    """Make the last dimension contiguous, because kernels read it so. Other strides can have any value."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _strides(*tensors: Tensor) -> tuple[int, ...]:
    """Return the strides of all dimensions but the last, for each tensor."""
    return tuple(stride for tensor in tensors for stride in tensor.stride()[:3])


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _split(parts: int, length: int, block: int, warps: int, device: torch.device) -> tuple[int, int]:
    return table.split(parts, triton.cdiv(length, block), warps, table.processors(device))


def _empty(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Allocate memory that kernels write. There is no other allocation, so tests can fill it and its surroundings with NaN."""
    return like.new_empty(shape, dtype=dtype)


def _shares(splits: int, like: Tensor, *shape: int) -> Tensor:
    """Allocate the partial sums of each split. A single split writes the result itself, in its dtype."""
    return _empty(like, splits, *shape, dtype=like.dtype if splits == 1 else _wide(like.dtype))


def _sum(shares: Tensor, dtype: torch.dtype) -> Tensor:
    """Add the partial sums in a fixed order, so that the result is the same on every run."""
    return shares[0] if shares.shape[0] == 1 else shares.sum(0).to(dtype)


def _zeros_like_keys(key: Tensor) -> tuple[Tensor, Tensor]:
    batch, heads, keys, dim = key.shape
    return key.new_zeros(batch, keys, heads, dim), key.new_zeros(batch, keys, heads, dim)


def _threshold_and_gain(dropout: float) -> tuple[int, float]:
    """Return the threshold and the gain. Weights whose 31 random bits are below the threshold are dropped; the others are
    multiplied by the gain.
    """
    return round(dropout * 2**31), 1.0 / (1.0 - dropout)


def _as_bytes(key_valid: Tensor | None) -> Tensor | None:
    return None if key_valid is None else key_valid.contiguous().view(torch.uint8)


def _precision(dtype: torch.dtype) -> str:
    """Return the precision of matrix products: three tf32 products for float32, or one if PyTorch's own may use tf32."""
    if INTERPRETED and dtype.itemsize > 2:
        return "ieee"
    return "tf32x3" if dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32" else "tf32"


def _constants(tile: table.AttentionTile, query: Tensor, key: Tensor, dropout: float) -> dict[str, Any]:
    dim, full = query.shape[-1], key.shape[2] % tile.keys == 0
    sizes = {"DIM": dim, "SCALE": dim**-0.5 * math.log2(math.e), "PRECISION": _precision(query.dtype)}
    return {**tile.constants(), **sizes, "FULL": full, "DROPOUT": dropout > 0}
