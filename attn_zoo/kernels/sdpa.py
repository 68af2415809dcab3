"""PyTorch's fused softmax attention over the keys that are there."""

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
    """softmax(scale · Q Kᵀ) V over valid keys, scale being 1/√d unless given; finite, whatever it is, where no key is valid."""
    # Rows without any key become zero later; until then they see all, because fused kernels may answer NaN.
    mask = None if valid is None else (valid | ~valid.any(dim=-1, keepdim=True))[:, None, None]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale)
