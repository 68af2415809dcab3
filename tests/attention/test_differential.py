"""Differential attention: λ by layer, maps that cancel."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attn_zoo import Geometry, UnsupportedError, build_attention
from attn_zoo.attention.dense.differential import RMS_FLOOR, Differential
from attn_zoo.contract import join_stacks
from attn_zoo.contract.masks import softmax_over_valid

HEADS, D, N = 2, 8, 9


def build() -> Differential:
    built = build_attention("differential", Geometry(HEADS, D, N, N, causal=True)).double()
    assert isinstance(built, Differential)
    return built


def draw(width: int) -> Tensor:
    return torch.randn(2, HEADS, N, width, dtype=torch.float64)


def test_the_initial_weight_grows_with_the_layer():
    stack = [build() for _ in range(3)]
    join_stacks(stack)
    assert [layer.initial for layer in stack] == [0.8 - 0.6 * math.exp(-0.3 * layer) for layer in range(3)]


def test_equal_maps_leave_a_share_of_one_softmax():
    """With equal halves, the outputs before the norm are 1 − λ times those of softmax attention with half the channels."""
    built = build()
    query, key, value = draw(D // 2), draw(D // 2), draw(D)
    scores = query @ key.mT / (D // 2) ** 0.5
    plain = softmax_over_valid(scores, torch.ones(N, N, dtype=torch.bool).tril()) @ value
    left = (1 - built.weight()) * plain
    expected = (1 - built.initial) * left / (left.square().mean(dim=-1, keepdim=True) + RMS_FLOOR).sqrt()
    torch.testing.assert_close(built(query.repeat(1, 1, 1, 2), key.repeat(1, 1, 1, 2), value), expected, rtol=1e-10, atol=1e-10)


def test_heads_that_cannot_be_halved_are_refused():
    with pytest.raises(UnsupportedError, match="head_dim of at least 2"):
        build_attention("differential", Geometry(HEADS, 1, N, N))
