"""PyTorch's fused softmax attention over valid keys."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def sdpa_over_valid(
    query: Float[Tensor, "batch heads queries d"],
    key: Float[Tensor, "batch heads keys d"],
    value: Float[Tensor, "batch heads keys dv"],
    valid: Bool[Tensor, "batch keys"] | None,
    *,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Float[Tensor, "batch heads queries dv"]:
    """Compute softmax(scale · Q Kᵀ) V over valid keys, scale 1/√d by default; finite but arbitrary where no key is valid."""
    # Rows without any valid key are zeroed later; here they see all keys, because fused kernels may return NaN.
    mask = None if valid is None else (valid | ~valid.any(dim=-1, keepdim=True))[:, None, None]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale)
