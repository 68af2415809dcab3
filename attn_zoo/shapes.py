"""Named types for the input and output tensors of mechanisms, and the mask of real (not padded) positions."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Queries = Float[Tensor, "batch heads queries head_dim"]
"""Queries, and the output of each query."""
Keys = Float[Tensor, "batch heads keys head_dim"]
"""Keys, values, or extra projections of their tokens (``streams``)."""
PerHead = Float[Tensor, "batch heads keys 1"]
"""One number per head and token, such as the logit of a gate: a stream whose ``per_head`` is true."""
KeyValid = Bool[Tensor, "batch keys"] | None
"""True for a real token, False for padding; None if all tokens are real."""
Compressed = Float[Tensor, "batch heads r head_dim"]
"""Keys or values that are compressed along the sequence."""
CompressedValid = Bool[Tensor, "batch r"] | None
"""True for a compressed key that contains a real token; None if all do."""


def real_positions(tokens: Float[Tensor, "batch heads n head_dim"], key_valid: KeyValid) -> Bool[Tensor, "batch n"]:
    """Return the mask of real (not padded) tokens: ``key_valid``, or True everywhere if ``key_valid`` is None."""
    return tokens.new_ones(tokens.shape[0], tokens.shape[2], dtype=torch.bool) if key_valid is None else key_valid
