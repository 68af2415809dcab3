"""Capture of the queries, keys and values of the softmax attention in a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attn_zoo.analysis.inputs import AttentionInputs
from attn_zoo.analysis.watching import (
    as_in_evaluation,
    implementation_of,
    is_transformers,
    mechanisms_of,
    padding_mask,
    refuse_blind,
    watch_calls,
    watch_mechanisms,
)
from attn_zoo.contract import Attention, UnsupportedError

_HIDDEN = -1e4
"""A score bias of at most this value masks the key. The lowest number in float16 is -65504."""


def attention_inputs(model: nn.Module, batch: Any) -> list[AttentionInputs]:
    """Return the queries, keys and values of every attention layer of ``model``, after the projections and the split into heads,
    in the order in which the layers run.

    The kinds of model are those of ``attention_matrices``. Models of Hugging Face use ``scaled_dot_product_attention`` during this
    run. If several query heads share a key and value head, this head is repeated. If the model does not scale scores by 1/√d,
    where d is the width of a head, the queries are multiplied so that this scale gives the same scores.

    Args:
        batch: input of the model. A mapping is passed as keyword arguments, anything else as the only argument.

    Raises:
        UnsupportedError: a mechanism is not ``softmax``, scores have a bias, a mask is neither causal nor a padding mask, the
            model does not mask the padding in the batch, or no attention was found.
    """
    inputs: list[AttentionInputs] = []
    mechanisms = mechanisms_of(model)
    with as_in_evaluation(model), torch.no_grad():
        if mechanisms:
            watch_mechanisms(model, mechanisms, batch, lambda *call, **named: inputs.append(_mechanism_inputs(*call, **named)))
        else:
            with _calling_pytorch(model):
                watch_calls(model, batch, lambda *call, **named: inputs.append(_call_inputs(*call, **named)))
    refuse_blind(model, inputs)
    mask = padding_mask(batch)
    if mask is not None and not bool(mask.all()) and any(layer.key_valid is None for layer in inputs):
        raise UnsupportedError(
            "the batch must not hold padding, because this model does not mask padding. Cut every sequence to its real tokens"
        )
    return inputs


def _mechanism_inputs(
    mechanism: Attention, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None = None, **_: Any
) -> AttentionInputs:
    return AttentionInputs(query, key, value, key_valid, mechanism.geometry.causal)


def _call_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionInputs:
    """Convert the arguments of one call of ``scaled_dot_product_attention`` to attention inputs."""
    if enable_gqa:
        shared = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(shared, dim=-3), value.repeat_interleave(shared, dim=-3)
    if scale is not None:
        query = query * (scale * query.shape[-1] ** 0.5)
    key_valid, past_only = None, False
    if attn_mask is not None:
        key_valid, past_only = _read_mask(attn_mask, query, key)
    causal = is_causal or past_only
    return AttentionInputs(query.contiguous(), key.contiguous(), value.contiguous(), key_valid, causal)


def _read_mask(mask: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor | None, bool]:
    """Return the padding mask that an attention mask contains (None if all keys are real), and True if the mask is causal.

    Raises:
        UnsupportedError: the mask is not a combination of a causal mask and padding.
    """
    whole = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if whole.dtype != torch.bool:
        if not bool(((whole == 0) | (whole <= _HIDDEN)).all()):
            raise UnsupportedError(
                "the model must not add a bias to its attention scores, because other mechanisms cannot use a bias. Give another "
                "model"
            )
        whole = whole == 0
    last = whole[:, :1, -1:]  # the last query attends to every real key, causal or not
    past = torch.ones(whole.shape[-2:], dtype=torch.bool, device=whole.device).tril()
    key_valid = None if bool(last.all()) else last[:, 0, 0]
    if bool((whole == last).all()):
        return key_valid, False
    if query.shape[2] == key.shape[2] and bool((whole == (last & past)).all()):
        return key_valid, True
    raise UnsupportedError(
        "the attention mask of the model must be causal or hide padding only, because other mechanisms cannot use any other "
        "mask. Give another model"
    )


@contextmanager
def _calling_pytorch(model: nn.Module) -> Iterator[None]:
    """Return a context in which a model of Hugging Face calls PyTorch's ``scaled_dot_product_attention``."""
    before = implementation_of(model) if is_transformers(model) else None
    if before in (None, "sdpa"):
        yield
        return
    switched: Any = model
    try:
        switched.set_attn_implementation("sdpa")
    except ValueError as error:
        raise UnsupportedError(
            f"{type(model).__name__} cannot use PyTorch's attention (sdpa). Give another model. Cause: {error}"
        ) from error
    try:
        yield
    finally:
        switched.set_attn_implementation(before)
