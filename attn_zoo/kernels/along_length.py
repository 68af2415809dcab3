"""Projections E X along the length. Implementations are Triton kernels, CPU tiles (for ``tiled`` and ``sdpa``) and PyTorch."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.kernels.cpu import projection as cpu
from attn_zoo.shapes import Keys

KeyValid = Bool[Tensor, "batch keys"] | None
Pair = tuple[Float[Tensor, "*batch r width"], Float[Tensor, "*batch r width"]]
"""Projected tokens E X and F X."""


def project_heads(
    implementation: str, matrix: Float[Tensor, "#heads r keys"], tokens: Keys, valid: KeyValid
) -> Float[Tensor, "batch heads r head_dim"]:
    """Compute E X for every head, with one matrix for all heads or one for each."""
    if _tiled(implementation, tokens):
        return cpu.project_heads(matrix, tokens)
    if implementation == "triton":
        from attn_zoo.kernels.linformer import project_heads

        return project_heads(matrix, tokens, valid)
    if len(matrix) == 1:
        return torch.einsum("rn,bhnd->bhrd", matrix[0], tokens)
    return torch.einsum("hrn,bhnd->bhrd", matrix, tokens)


def compress(
    implementation: str, weight: Float[Tensor, "roles 1 r n"], tokens: Float[Tensor, "batch keys width"], valid: KeyValid
) -> Pair:
    """Compute E X and F X of tokens before they are split into heads."""
    stacked = _stacked(weight, tokens)
    if _tiled(implementation, tokens):
        return _split(cpu.mix(stacked, tokens)[0], weight)
    if implementation == "triton":
        from attn_zoo.kernels.linformer import project_sequence

        return _split(project_sequence(stacked, tokens, valid), weight)
    return _split(torch.einsum("rn,bnd->brd", stacked, tokens), weight)


def compress_and_weigh(
    implementation: str, weight: Float[Tensor, "roles 1 r n"], tokens: Float[Tensor, "batch keys width"], valid: KeyValid
) -> tuple[Pair, Pair]:
    """Compute E X and F X, and also E 1 and F 1, where 1 has ones at the real tokens."""
    if not _tiled(implementation, tokens):
        masses = cpu.masses_of(_stacked(weight, tokens), valid)
        return compress(implementation, weight, tokens, valid), _split(masses[..., None], weight)
    both, masses = cpu.mix(_stacked(weight, tokens), tokens, valid, weigh=True)
    return _split(both, weight), _split(masses[..., None], weight)


def _tiled(implementation: str, tokens: Tensor) -> bool:
    return implementation in ("tiled", "sdpa") and tokens.device.type in ("cpu", "meta")


def _stacked(weight: Tensor, tokens: Tensor) -> Float[Tensor, "rows keys"]:
    """Stack the rows of E and F, so that tokens are read once. The result is a view, so its gradient is not copied."""
    rows, keys = weight.flatten(0, 2), tokens.shape[1]
    return rows[:, :keys] if keys < weight.shape[3] else rows


def _split(both: Float[Tensor, "*batch rows width"], weight: Tensor) -> Pair:
    """Split a result into the rows of E and the rows of F."""
    r = weight.shape[2]
    return both[..., :r, :], both[..., -r:, :]
