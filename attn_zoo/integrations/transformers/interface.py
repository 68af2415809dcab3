"""The function that transformers calls for every attention of a model whose attention was replaced."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from attn_zoo.contract import UnsupportedError
from attn_zoo.integrations.transformers.attached import Attached, attached_to
from attn_zoo.integrations.transformers.description import NOTHING_ATTACHED

HARMLESS = frozenset(
    ["position_ids", "cache_position", "position_embeddings", "past_key_values", "use_cache", "num_items_in_batch", "labels"]
    + ["output_hidden_states", "return_dict", "logits_to_keep", "token_type_ids", "interpolate_pos_encoding"]
    + ["encoder_hidden_states", "encoder_attention_mask"]
)
"""Keywords that models pass on and that do not change attention. Any other one is refused, unless it is None or False."""


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
    """Attend by what is attached to ``module``; see transformers' ``AttentionInterface``.

    Args:
        attention_mask: what ``key_mask`` made.
        scaling: what query · key is multiplied by.
        dropout: rate of this call; in training it must be the one that the model had when its attention was replaced.
        is_causal: of this call, where the model says it.
        **rest: passed on by models; what would change attention is refused.

    Returns:
        The answers, and None for the weights.

    Raises:
        UnsupportedError: the call asks for something that cannot be honoured.
    """
    attached = attached_to(module)
    if attached is None:
        raise UnsupportedError(NOTHING_ATTACHED)
    name, mechanism = attached.mechanism.card.name, attached.mechanism
    asked = sorted(word for word, value in rest.items() if word not in HARMLESS and value is not None and value is not False)
    if asked:
        raise UnsupportedError(
            f"{attached.name}: {', '.join(asked)} cannot be honoured by {name}; call the model without, or choose one whose "
            "attention is plain softmax"
        )
    if attention_mask is not None and attention_mask.dim() != 2:
        raise UnsupportedError(
            f"{attached.name}: a mask of shape {tuple(attention_mask.shape)} tells queries apart, which {name} cannot honour; pass "
            "an attention_mask of shape (batch, length)"
        )
    if is_causal is not None and is_causal != mechanism.geometry.causal:
        raise UnsupportedError(
            f"{attached.name}: the call says is_causal={is_causal}, and {name} was built with causal={mechanism.geometry.causal}; "
            "change the model's configuration first and replace the attention then"
        )
    if module.training and dropout != attached.rate:
        raise UnsupportedError(
            f"{attached.name}: the model would drop a share of {dropout} of the attention weights, and dropped {attached.rate} "
            f"when {name} was put in; replace the attention anew, with attention_dropout={dropout}"
        )
    _check_cached(attached, query.shape[2], key.shape[2])
    return attached(query, key, value, attention_mask, scaling), None


def _check_cached(attached: Attached, queries: int, keys: int) -> None:
    mechanism = attached.mechanism
    if mechanism.geometry.causal and queries != keys and (attached.newest is None or queries > 1):
        raise UnsupportedError(
            f"{attached.name}: {queries} queries with {keys} keys, of which some come from a cache, and {mechanism.card.name} "
            f"answers {'one new token' if attached.newest else 'all tokens'} in one call; call the model with use_cache=False"
        )
