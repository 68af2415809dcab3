"""Conversion of transformers' mask arguments to a padding mask, which is True for each real key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from attn_zoo.contract import UnsupportedError
from attn_zoo.integrations.transformers.description import NOTHING_ATTACHED, directions_of

_WORDS = {True: "causal", False: "bidirectional"}


def key_mask(
    *,
    batch_size: int,
    kv_length: int,
    mask_function: Callable[..., Any],
    config: Any,
    attention_mask: Shaped[Tensor, "batch keys"] | None = None,
    kv_offset: int = 0,
    local_size: int | None = None,
    **rest: Any,
) -> Bool[Tensor, "batch keys"] | None:
    """Return the padding mask. transformers calls this function once per forward pass and passes the result to every attention
    layer.

    The mask has no axis of queries. A causal mechanism hides later keys itself.

    Args:
        batch_size, kv_length: numbers of examples and of keys.
        kv_offset: position of the first key. It must be 0 if ``attention_mask`` is given.
        mask_function: transformers' rule that decides whether one query sees one key.
        config: configuration of the model.
        attention_mask: mask that is zero or False for padding.
        local_size: width of a window. It must be None, because windows are unsupported.
        **rest: further arguments of transformers, which are ignored.

    Returns:
        True for each real key, or None if all keys are real.

    Raises:
        UnsupportedError: the mask is neither causal nor bidirectional, no mechanism was built for its direction, or its shape does
            not fit.
    """
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

    known = {causal_mask_function: True, bidirectional_mask_function: False}
    if mask_function not in known or local_size is not None:
        raise UnsupportedError(
            "the attention of the model must be causal or bidirectional, but its mask has another form (such as a window or "
            "packed sequences). Choose another model. If position_ids restart or the model is compiled, pass an "
            "attention_mask of shape (batch, length)"
        )
    causal, built = known[mask_function], directions_of(config)
    if not built:
        raise UnsupportedError(NOTHING_ATTACHED)
    if causal not in built:
        raise UnsupportedError(
            f"the model uses {_WORDS[causal]} attention, but its mechanisms were built for {_WORDS[not causal]} attention. "
            "Change the model's configuration first, then replace the attention"
        )
    if attention_mask is None:
        return None
    if attention_mask.shape != (batch_size, kv_length) or kv_offset != 0:
        raise UnsupportedError(
            f"attention_mask must have shape (batch, keys) = ({batch_size}, {kv_length}), with True for real keys; got "
            f"{tuple(attention_mask.shape)} for keys from position {kv_offset} on"
        )
    real = attention_mask.to(torch.bool)
    if not torch.compiler.is_compiling() and bool(real.all()):
        return None  # mechanisms without padding support can then process the batch
    return real
