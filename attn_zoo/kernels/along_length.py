"""Matrix products E X, which compress tokens X along the length. Triton kernels, CPU tiles (implementations ``tiled`` and
``sdpa``) or PyTorch compute them.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.kernels.cpu import projection as cpu
from attn_zoo.shapes import Keys

KeyValid = Bool[Tensor, "batch keys"] | None
Pair = tuple[Float[Tensor, "*batch r width"], Float[Tensor, "*batch r width"]]
"""Two tensors of projected tokens: E X for keys and F X for values."""


def project_heads(
    implementation: str, matrix: Float[Tensor, "#heads r keys"], tokens: Keys, valid: KeyValid
) -> Float[Tensor, "batch heads r head_dim"]:
    """Return E X for every head. E compresses the tokens X along the length; ``matrix`` holds one E for all heads, or one per
    head.
    """
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
    """Return E X for keys and F X for values. ``weight`` holds E and F, which compress the tokens X along the length. X is not
    yet split into heads.
    """
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
    """Return two pairs: (E X, F X) as ``compress`` does, and (E m, F m). The column m is 1 at real tokens and 0 at padding."""
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
