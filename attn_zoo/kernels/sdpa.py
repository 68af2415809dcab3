"""PyTorch's fused softmax attention over valid keys."""

from __future__ import annotations

import torch.nn.functional as F

from attn_zoo.shapes import Keys, KeyValid, Queries


def sdpa_over_valid(query: Queries, key: Keys, value: Keys, valid: KeyValid, *, dropout: float = 0.0) -> Queries:
    """Compute softmax(Q Kᵀ / √d) V over valid keys; finite but arbitrary if no key is valid."""
    # Rows without any valid key are zeroed later; here they see all keys, because fused kernels may return NaN.
    mask = None if valid is None else (valid | ~valid.any(dim=-1, keepdim=True))[:, None, None]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
