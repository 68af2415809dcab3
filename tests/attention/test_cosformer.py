"""cosFormer against its weights written out, over all keys, over the past and token by token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from stepping import step
from torch import Tensor
from written_out import builder, draw, require_same

from attn_zoo.attention.linear.cosformer import CosFormer
from attn_zoo.contract import UnsupportedError
from attn_zoo.kernels.cpu import _chunks

build = builder(CosFormer)


def written_out(inputs: Sequence[Tensor], reach: int, *, causal: bool = False, valid: Tensor | None = None) -> Tensor:
    """Attention with weights relu(q)·relu(k) cos(π/2 (i - j)/M), features 0.001 larger, masked and divided by their sum."""
    query, key, value = inputs
    weights = (query.relu() + 1e-3) @ (key.relu() + 1e-3).mT
    distance = torch.arange(query.shape[2])[:, None] - torch.arange(key.shape[2])
    weights = weights * (distance.double() * math.pi / 2 / reach).cos()
    if causal:
        weights = weights.tril()
    if valid is not None:
        weights = weights * valid[:, None, None, :]
    return weights / weights.sum(-1, keepdim=True) @ value


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Set chunks of 16 positions."""
    monkeypatch.setattr(_chunks, "CHUNK", 16)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("n", [1, 33, 100])
def test_equals_its_weights_written_out(causal, padded, n):
    built, inputs = build(n, causal=causal), draw(n)
    lengths = torch.tensor([n, max(1, n // 2), 1])[:, None]
    valid = (torch.arange(n) < lengths) & ((torch.arange(n) % 5 != 2) | (torch.arange(n) == 0)) if padded else None
    require_same(built(*inputs, key_valid=valid), written_out(inputs, n, causal=causal, valid=valid), inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_shorter_inputs_keep_the_cosine_of_the_length_built_for(causal):
    built, inputs = build(80, causal=causal), draw(33)
    require_same(built(*inputs), written_out(inputs, 80, causal=causal), inputs)


def test_what_lies_beyond_the_cosine_is_refused():
    inputs = [x.detach() for x in draw(34)]
    with pytest.raises(UnsupportedError, match="was built for 33 keys; got 34"):
        build()(*inputs)
    with pytest.raises(UnsupportedError, match="at most 33 queries, because its weights would be negative for more; got 34"):
        build()(inputs[0], inputs[1][:, :, :33], inputs[2][:, :, :33])
    causal = build(causal=True)
    _, state = step(causal, [x[:, :, :30] for x in inputs], causal.initial_state(3, dtype=torch.float64))
    with pytest.raises(UnsupportedError, match="built for 33 tokens, but this step ends at token 34"):
        step(causal, [x[:, :, 30:] for x in inputs], state)


def test_resizing_goes_over_to_another_cosine():
    built, inputs = build(), draw(50)
    built.resize_length(50)
    require_same(built(*inputs), written_out(inputs, 50), inputs)
