"""Conversion of timm's argument ``attn_mask`` to a padding mask."""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor

from attn_zoo.contract import UnsupportedError

SHAPES = "(batch, keys), (batch, 1, 1, keys) or (batch, 1, queries, keys)"


def key_valid_of(name: str, attn_mask: Tensor, *, batch: int, length: int, causal: bool) -> Bool[Tensor, "batch keys"]:
    """Convert ``attn_mask``, a mask as for ``scaled_dot_product_attention``, to a padding mask, which is True for real tokens.

    A boolean ``attn_mask`` is True at visible keys. An additive ``attn_mask`` is 0 at visible keys, and -inf or the lowest number
    of its dtype at hidden keys. ``attn_mask`` must hide the same keys from every query, with two exceptions. It may hide more keys
    from padding, as timm's masks for images of several sizes (NaFlex) do. If ``causal`` is True, it may hide later keys.

    If the mask is additive or has a head or query axis, its values are checked, which synchronises a GPU.

    Args:
        name: name of the mechanism, for messages.
        causal: True if the layer is causal, and so hides later keys itself.

    Raises:
        ValueError: ``attn_mask`` has a shape or dtype that timm does not use.
        UnsupportedError: ``attn_mask`` is a bias, or depends on queries or heads.
    """
    seen = _four_axes(name, _seen(name, attn_mask), batch, length)
    if seen.shape[1] > 1:
        if bool((seen != seen[:, :1]).any()):
            raise UnsupportedError(f"{name} in timm: attn_mask must be the same for all heads, because it can only mask padding")
        seen = seen[:, :1]
    if seen.shape[2] == 1:
        return seen[:, 0, 0].expand(batch, length)
    rows = seen[:, 0]
    valid = rows.any(dim=1)
    as_padding = rows == valid[:, None, :]
    if causal:
        later = torch.ones(length, length, dtype=torch.bool, device=rows.device).triu(1)
        as_padding = as_padding | later
    if not bool((as_padding | ~valid[:, :, None]).all()):
        raise UnsupportedError(
            f"{name} in timm: attn_mask must hide the same keys from all queries, as padding does, or be causal if the layer "
            "was built with causal=True. Pass another mask"
        )
    return valid.expand(batch, length)


def _seen(name: str, attn_mask: Tensor) -> Tensor:
    if attn_mask.dtype == torch.bool:
        return attn_mask
    if not attn_mask.is_floating_point():
        raise ValueError(
            f"{name} in timm: attn_mask must be boolean, or of a float dtype to be added to the scores; got {attn_mask.dtype}"
        )
    hidden = attn_mask <= torch.finfo(attn_mask.dtype).min
    if not bool((hidden | (attn_mask == 0)).all()):
        raise UnsupportedError(
            f"{name} in timm: attn_mask must hold only 0 (a real token) and -inf or the least number of its dtype (padding); "
            "got other numbers. Pass a mask of padding"
        )
    return ~hidden


def _four_axes(name: str, seen: Tensor, batch: int, length: int) -> Bool[Tensor, "_ _ _ keys"]:
    shape = tuple(seen.shape)
    if seen.dim() == 2 and shape == (length, length) and 1 < batch == length:
        raise ValueError(
            f"{name} in timm: the shape {shape} of attn_mask is ambiguous, because it fits (batch, keys) and (queries, keys). "
            "Pass shape (batch, 1, 1, keys) to mask padding"
        )
    if seen.dim() == 2:
        seen = seen[None, None] if shape == (length, length) else seen[:, None, None]
    fits = seen.dim() == 4 and seen.shape[3] == length and seen.shape[2] in (1, length) and seen.shape[0] in (1, batch)
    if not fits:
        raise ValueError(f"{name} in timm: attn_mask must have shape {SHAPES} with batch={batch} and {length} tokens; got {shape}")
    return seen
