"""Public functions of the Triton kernels. They check the inputs, apply autocast, and choose a kernel: one for keys that
all fit on the chip, or one for blocks of keys.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attn_zoo.kernels.derivatives import refuse_transforms
from attn_zoo.kernels.linformer import launch, ops, table

_SIXTEEN_OR_THIRTY_TWO = (torch.float16, torch.bfloat16, torch.float32)


def linformer_attention(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch heads r head_dim"],
    value: Float[Tensor, "batch heads r head_dim"],
    *,
    dropout: float = 0.0,
    seed: Int[Tensor, ""] | None = None,
) -> Float[Tensor, "batch heads queries head_dim"]:
    """Return softmax(query keyᵀ / √head_dim) value, for keys and values that are already compressed along the length.

    Inputs may be views with any strides. Views of (batch, length, heads · head_dim) are read in place. The output is also a view of
    this kind, so ``out.transpose(1, 2).flatten(2)`` copies nothing. Under autocast, the inputs are cast to the dtype of autocast.
    Sums and the softmax are in single precision, weights in the dtype of the inputs.

    Args:
        query, key, value: tensors of float16, bfloat16 or float32 on a CUDA device. head_dim is at most 128.
        dropout: probability of setting a weight to zero, in [0, 1). The other weights are multiplied by 1 / (1 - dropout).
        seed: seed of dropout. Equal seeds drop the same weights. None draws a seed from torch's generator of the device. The
            seed is never copied to the CPU.

    Raises:
        ValueError: a shape, dtype, device or dropout rate is not supported.
        UnsupportedError: an input is differentiated in forward mode, or a transform of ``torch.func`` is active.
    """
    query, key, value = _under_autocast(query, key, value)
    _check_device("linformer_attention", query=query, key=key, value=value)
    refuse_transforms(query, key, value)
    _check_attention(query, key, value, dropout, seed)
    if dropout and seed is None:
        seed = torch.randint(2**63 - 1, (), device=query.device)
    if table.on_chip(key.shape[2], key.shape[3], key.dtype, dropout > 0):
        out = ops.attend(query, key, value, seed, dropout)
    else:
        out, _ = ops.attend_blocks(query, key, value, seed, dropout)
    return out.transpose(1, 2)


def project_sequence(
    projection: Float[Tensor, "*heads r length"],
    tokens: Float[Tensor, "batch *heads keys width"],
    key_valid: Bool[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch *heads r width"]:
    """Return projection @ tokens, the tokens projected along the length. Padded tokens count as zeros, even if they hold NaN.

    To project the same tokens twice, stack both projections into one with twice the rows. The tokens are then read once. Under
    autocast, projection and tokens are cast to the dtype of autocast. Sums are in single precision, and always added in the
    same order.

    Args:
        projection: matrix (r, length) for all heads, or (heads, r, length). Columns beyond the number of keys are ignored.
        tokens: tensor (batch, keys, width), or (batch, heads, keys, width) with a projection for each head, with any strides.
        key_valid: True for a real token. None means that all are real.

    Raises:
        ValueError: a shape, dtype or device does not fit.
    """
    projection, tokens = _under_autocast(projection, tokens)
    _check_device("project_sequence", projection=projection, tokens=tokens)
    refuse_transforms(projection, tokens)
    _check_projection(projection, tokens, key_valid)
    per_head = projection.dim() == 3
    matrix = projection[..., : tokens.shape[-2]]
    if per_head:
        return ops.project(matrix, tokens, key_valid)
    return ops.project(matrix[None], tokens[:, None], key_valid)[:, 0]


def project_heads(
    projection: Float[Tensor, "#heads r keys"],
    tokens: Float[Tensor, "batch heads keys head_dim"],
    key_valid: Bool[Tensor, "batch keys"] | None = None,
) -> Float[Tensor, "batch heads r head_dim"]:
    """Return the tokens of every head, projected along the length. Heads that share one projection are projected together."""
    if len(projection) > 1:
        return project_sequence(projection, tokens, key_valid)
    heads, head_dim = tokens.shape[1], tokens.shape[3]
    side_by_side = tokens.transpose(1, 2).flatten(2)
    return project_sequence(projection[0], side_by_side, key_valid).unflatten(-1, (heads, head_dim)).transpose(1, 2)


def _under_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast tensors as autocast does: all floating-point tensors except float64."""
    device = tensors[0].device.type
    if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors)


def _check_device(function: str, **tensors: Tensor) -> None:
    """Check that tensors have one device and one dtype, and that the kernels support both."""
    (name, first), *others = tensors.items()
    for other, tensor in others:
        if tensor.device != first.device or tensor.dtype != first.dtype:
            raise ValueError(
                f"{function}: {name} and {other} must share device and dtype; got {first.dtype} on {first.device} and "
                f"{tensor.dtype} on {tensor.device}"
            )
    if not launch.INTERPRETED and first.device.type != "cuda":
        raise ValueError(
            f"{function}: {name} must be on a CUDA device, because Triton kernels run there; got {first.device}; move it there, "
            "use "
            "implementation=sdpa, or set TRITON_INTERPRET=1 before triton is imported to test without a GPU"
        )
    known = (*_SIXTEEN_OR_THIRTY_TWO, torch.float64) if launch.INTERPRETED else _SIXTEEN_OR_THIRTY_TWO
    if first.dtype not in known:
        raise ValueError(
            f"{function}: {name} must have dtype {', '.join(map(str, known))}; got {first.dtype}; use implementation=sdpa"
        )


def _check_attention(query: Tensor, key: Tensor, value: Tensor, dropout: float, seed: Tensor | None) -> None:
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if query.dim() != 4 or key.dim() != 4 or key.shape != value.shape:
        raise ValueError(
            "linformer_attention: query, key and value must have shape (batch, heads, length, head_dim), and key and value must "
            f"have equal shapes; got {shapes}"
        )
    if query.shape[:2] != key.shape[:2] or query.shape[3] != key.shape[3]:
        raise ValueError(f"linformer_attention: query and key must have equal batch, heads and head_dim; got {shapes}")
    if key.shape[2] < 1:
        raise ValueError(f"linformer_attention: there must be at least one key, because the softmax is over the keys; got {shapes}")
    if not 1 <= query.shape[3] <= table.HEAD_DIM_LIMIT:
        raise ValueError(
            f"linformer_attention: head_dim must be from 1 to {table.HEAD_DIM_LIMIT}; got {query.shape[3]}; use implementation=sdpa"
        )
    if not 0.0 <= dropout < 1.0:
        raise ValueError(
            "linformer_attention: dropout must be at least 0 and less than 1, because it is the share of weights set to zero; "
            f"got {dropout}"
        )
    if seed is not None and (seed.dtype != torch.int64 or seed.dim() != 0 or seed.device != query.device):
        raise ValueError(
            f"linformer_attention: seed must be an int64 tensor without dimensions on {query.device}; "
            f"got {seed.dtype} {tuple(seed.shape)} on {seed.device}"
        )


def _check_projection(projection: Tensor, tokens: Tensor, key_valid: Tensor | None) -> None:
    shapes = f"projection {tuple(projection.shape)} and tokens {tuple(tokens.shape)}"
    if (projection.dim(), tokens.dim()) not in ((2, 3), (3, 4)):
        raise ValueError(
            "project_sequence: a projection of shape (r, length) must come with tokens of shape (batch, keys, width), and one of "
            f"shape (heads, r, length) with tokens of shape (batch, heads, keys, width); got {shapes}"
        )
    if projection.dim() == 3 and projection.shape[0] != tokens.shape[1]:
        raise ValueError(f"project_sequence: projection and tokens must have equal heads; got {shapes}")
    if projection.shape[-2] < 1 or projection.shape[-1] < tokens.shape[-2]:
        raise ValueError(f"project_sequence: the projection must have at least one row, and a column for each key; got {shapes}")
    expected = (tokens.shape[0], tokens.shape[-2])
    if key_valid is not None and (
        key_valid.dtype != torch.bool or key_valid.shape != expected or key_valid.device != tokens.device
    ):
        raise ValueError(
            f"project_sequence: key_valid must be boolean of shape (batch, keys) = {expected} on {tokens.device}, True for a "
            f"real token; got {key_valid.dtype} {tuple(key_valid.shape)} on {key_valid.device}"
        )
