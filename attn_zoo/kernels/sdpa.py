"""Softmax attention by PyTorch's fused kernels."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from attn_zoo.kernels.derivatives import GRADIENTS_AND_BATCHES, name_refusal, refuse_transforms
from attn_zoo.shapes import Keys, KeyValid, Queries


def fused_attention(
    query: Queries,
    key: Keys,
    value: Keys,
    allowed: Bool[Tensor, "#batch #heads #queries keys"] | None = None,
    *,
    dropout: float = 0.0,
    causal: bool = False,
) -> Queries:
    """Return softmax(Q Kᵀ / √d) V over the allowed pairs. If a query has no allowed key, its output depends on PyTorch's back end:
    zeros, NaN or a mean of values.

    Raises:
        UnsupportedError: forward-mode differentiation is requested, or, on a backward pass, a second derivative.
    """
    refuse_transforms(query, key, value, allow=GRADIENTS_AND_BATCHES)
    return name_refusal(F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, dropout_p=dropout, is_causal=causal))


def sdpa_over_valid(query: Queries, key: Keys, value: Keys, valid: KeyValid, *, dropout: float = 0.0) -> Queries:
    """Return softmax(Q Kᵀ / √d) V over the valid keys. If no key is valid, the result is finite, but can have any value."""
    # Rows without any valid key are zeroed later; here they see all keys, because fused kernels may return NaN.
    mask = None if valid is None else (valid | ~valid.any(dim=-1, keepdim=True))[:, None, None]
    return fused_attention(query, key, value, mask, dropout=dropout)
