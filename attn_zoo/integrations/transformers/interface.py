"""Attention function and mask function that transformers calls in models whose attention was replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from attn_zoo.contract import UnsupportedError
from attn_zoo.integrations.transformers.attached import Attached, attached_to
from attn_zoo.integrations.transformers.description import NOTHING_ATTACHED, directions_of

HARMLESS = frozenset(
    ["position_ids", "cache_position", "position_embeddings", "past_key_values", "cache", "use_cache", "num_items_in_batch"]
    + ["labels", "output_hidden_states", "return_dict", "logits_to_keep", "token_type_ids", "interpolate_pos_encoding"]
    + ["encoder_hidden_states", "encoder_attention_mask"]
)
"""Names of keyword arguments that have no effect on attention. Other arguments raise an error, unless they are None or False."""


_WORDS = {True: "causal", False: "bidirectional"}


def attend(
    module: nn.Module,
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys head_dim"],
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **rest: Any,
) -> tuple[Float[Tensor, "batch queries heads head_dim"], None]:
    """Return the output of the mechanism that is attached to ``module``. See transformers' ``AttentionInterface``.

    Args:
        attention_mask: result of ``key_mask``.
        scaling: factor by which query · key is multiplied. None means the module's default.
        dropout: dropout rate of this call. In training it must equal the model's rate at the time of the replacement.
        is_causal: True if this call is causal. None if the model does not state it.
        **rest: other arguments that the model passes. Arguments that would change attention raise an error.

    Returns:
        The output, and None in place of attention weights.

    Raises:
        UnsupportedError: the mechanism does not support the call.
    """
    attached = attached_to(module)
    if attached is None:
        raise UnsupportedError(NOTHING_ATTACHED)
    name, mechanism = attached.mechanism.card.name, attached.mechanism
    unsupported = sorted(word for word, value in rest.items() if word not in HARMLESS and value is not None and value is not False)
    if unsupported:
        raise UnsupportedError(
            f"{attached.name}: {name} does not support the argument {', '.join(unsupported)}. Call the model without it, or "
            "choose a model with plain softmax attention"
        )
    if attention_mask is not None and attention_mask.dim() != 2:
        raise UnsupportedError(
            f"{attached.name}: attention_mask must have shape (batch, length), because {name} supports only masks of padding; "
            f"got shape {tuple(attention_mask.shape)}"
        )
    if is_causal is not None and is_causal != mechanism.geometry.causal:
        raise UnsupportedError(
            f"{attached.name}: the call must use is_causal={mechanism.geometry.causal}, because {name} was built with it; got "
            f"is_causal={is_causal}. Change the model's configuration first, then replace the attention"
        )
    if module.training and dropout != attached.rate:
        raise UnsupportedError(
            f"{attached.name}: the dropout of attention weights must remain {attached.rate}, as when the attention was "
            f"replaced; got {dropout}. Replace the attention again with attention_dropout={dropout}"
        )
    _check_cached(attached, query.shape[2], key.shape[2])
    return attached(query, key, value, attention_mask, scaling), None


def _check_cached(attached: Attached, queries: int, keys: int) -> None:
    mechanism = attached.mechanism
    if mechanism.geometry.causal and queries != keys and (attached.newest is None or queries > 1):
        raise UnsupportedError(
            f"{attached.name}: with cached keys, {mechanism.card.name} must get "
            f"{'one new token' if attached.newest else 'all tokens'} per call; got {queries} queries and {keys} keys. Call "
            "the model with use_cache=False"
        )


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
