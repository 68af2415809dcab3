"""Queries, keys and values that the softmax attentions of a model are given, whoever wrote the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    refuse_blind,
    watch_calls,
    watch_mechanisms,
)
from attn_zoo.contract import Attention, UnsupportedError

_HIDDEN = -1e4
"""A number no higher than this, added to a score, hides the key: float16's lowest is -65504."""


def attention_inputs(model: nn.Module, batch: Any) -> list[AttentionInputs]:
    """Q, K and V after projection and head split of every attention of ``model``, in the order in which they run.

    The kinds of model are those of ``attention_matrices``; one of Hugging Face's is told for this one run to call PyTorch's
    function. Another scale than 1/√d is worked into the queries, keys and values that several heads share are repeated.

    Args:
        batch: what the model is called with: keywords if it is a mapping, else its one argument.

    Raises:
        UnsupportedError: a mechanism is not ``softmax``, scores get a bias, keys are hidden from some queries otherwise
            than by causality, or no attention was seen.
    """
    found: list[AttentionInputs] = []
    mechanisms = mechanisms_of(model)
    with as_in_evaluation(model), torch.no_grad():
        if mechanisms:
            watch_mechanisms(model, mechanisms, batch, lambda *call, **named: found.append(_of_mechanism(*call, **named)))
        else:
            with _calling_pytorch(model):
                watch_calls(model, batch, lambda *call, **named: found.append(_of_call(*call, **named)))
    refuse_blind(model, found)
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if mask is not None and not bool(mask.bool().all()) and any(layer.key_valid is None for layer in found):
        raise UnsupportedError("the batch holds padding that the attention was not told of; cut the sequences to real tokens only")
    return found


def _of_mechanism(
    mechanism: Attention, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None = None, **_: Any
) -> AttentionInputs:
    return AttentionInputs(query, key, value, key_valid, mechanism.geometry.causal)


def _of_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionInputs:
    """One call of ``scaled_dot_product_attention``, whose arguments these are."""
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
    """Which keys are real, None for all, and whether the mask is causal.

    Raises:
        UnsupportedError: it says anything else.
    """
    whole = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if whole.dtype != torch.bool:
        if not bool(((whole == 0) | (whole <= _HIDDEN)).all()):
            raise UnsupportedError(
                "the model adds a bias to its scores, of which other mechanisms know nothing; give another model"
            )
        whole = whole == 0
    last = whole[:, :1, -1:]  # the last query sees every real key, causal or not
    past = torch.ones(whole.shape[-2:], dtype=torch.bool, device=whole.device).tril()
    key_valid = None if bool(last.all()) else last[:, 0, 0]
    if bool((whole == last).all()):
        return key_valid, False
    if query.shape[2] == key.shape[2] and bool((whole == (last & past)).all()):
        return key_valid, True
    raise UnsupportedError(
        "the model hides keys query by query in a pattern of its own, of which other mechanisms know nothing; give another model"
    )


@contextmanager
def _calling_pytorch(model: nn.Module) -> Iterator[None]:
    """Have a model of Hugging Face call PyTorch's function, and afterwards compute as it did."""
    before = implementation_of(model) if is_transformers(model) else None
    if before in (None, "sdpa"):
        yield
        return
    switched: Any = model
    try:
        switched.set_attn_implementation("sdpa")
    except ValueError as error:
        raise UnsupportedError(f"{type(model).__name__} has no form that calls PyTorch's attention: {error}") from error
    try:
        yield
    finally:
        switched.set_attn_implementation(before)
