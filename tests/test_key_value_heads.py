"""Heads of keys and values that heads of queries share: equal PyTorch's grouped queries, and cost less."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import written_layers
from written_layers import LENGTH

from attn_zoo import Geometry, UnsupportedError, card
from attn_zoo.layer import MultiHeadAttention
from attn_zoo.registry import attention_options

DIM, HEADS = 24, 4
tokens = partial(written_layers.tokens, dim=DIM)


def build(attention: str, shared: int, **kwargs: Any) -> MultiHeadAttention:
    return written_layers.build(attention, dim=DIM, heads=HEADS, key_value_heads=shared, **kwargs)


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_equals_grouped_query_attention_of_pytorch(shared):
    layer, x = build("softmax", shared, causal=True), tokens()
    query, key, value = (
        F.linear(x, *layer._parameters_of(name)).unflatten(-1, (-1, DIM // HEADS)).transpose(1, 2)
        for name in ("query", "key", "value")
    )
    heads = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(layer(x), layer.out(heads.transpose(1, 2).flatten(2)), rtol=1e-10, atol=1e-10)


def test_cached_keys_and_values_take_as_much_less_as_the_card_states():
    x, held = tokens(), {}
    for shared in (0, 1):
        kept = build("softmax", shared, causal=True).remember(x)
        assert kept.key is not None and kept.value is not None
        geometry = Geometry(HEADS, DIM // HEADS, LENGTH, LENGTH, True, shared)
        stated = card("softmax").cost(geometry, attention_options(card("softmax"), geometry, {})).state_bytes
        held[shared] = kept.key.nbytes + kept.value.nbytes
        assert held[shared] == 3 * 2 * (stated or 0)  # three examples, eight bytes per number in place of four
    assert held[0] == HEADS * held[1]


@pytest.mark.parametrize(("heads", "words"), [(3, "must divide"), (-1, "must be"), (8, "must divide"), (True, "must be")])
def test_numbers_that_do_not_divide_the_heads_are_refused(heads, words):
    with pytest.raises(ValueError, match=rf"MultiHeadAttention.key_value_heads {words}"):
        MultiHeadAttention(DIM, HEADS, length=LENGTH, key_value_heads=heads)


def test_a_mechanism_that_makes_queries_and_keys_by_one_projection_is_refused():
    with pytest.raises(UnsupportedError, match=r"key_value_heads must be 0 .* for reformer"):
        MultiHeadAttention(DIM, HEADS, "reformer", length=LENGTH, key_value_heads=2)
