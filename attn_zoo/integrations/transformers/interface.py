"""Attention function that transformers calls in models whose attention was replaced."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.contract import UnsupportedError
from attn_zoo.integrations.transformers.attached import Attached, attached_to
from attn_zoo.integrations.transformers.description import NOTHING_ATTACHED

HARMLESS = frozenset(
    ["position_ids", "cache_position", "position_embeddings", "past_key_values", "cache", "use_cache", "num_items_in_batch"]
    + ["labels", "output_hidden_states", "return_dict", "logits_to_keep", "token_type_ids", "interpolate_pos_encoding"]
    + ["encoder_hidden_states", "encoder_attention_mask"]
)
"""Names of keyword arguments that have no effect on attention. Other arguments raise an error, unless they are None or False."""


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
