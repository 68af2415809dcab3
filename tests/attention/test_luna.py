"""Luna against pack and unpack attention written out in float64, and causally against its sums over the past."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from written_out import builder, padding, require_same_in, several

from attn_zoo import MultiHeadAttention, UnsupportedError
from attn_zoo.attention.low_rank.luna import Luna
from attn_zoo.kernels.cpu import _chunks as chunks

build = builder(Luna, implementation="eager")
FORMS = ("definition", "eager", "tiled", "sdpa")


def call(built: Luna, inputs: list[Tensor], valid: Tensor | None = None) -> Tensor:
    out: Tensor = built(*inputs[:3], key_valid=valid, streams={"context": inputs[3]})
    return out


def nested(built: Luna, inputs: list[Tensor], valid: Tensor) -> Tensor:
    """Pack and unpack attention of one head of one example at a time, over the valid tokens only."""
    out = []
    for b, h in torch.cartesian_prod(torch.arange(3), torch.arange(2)).tolist():
        query, (key, value, context) = inputs[0][b, h], (t[b, h, valid[b]] for t in inputs[1:])
        shares = (built.packed_query[h] @ context.T / 8**0.5).softmax(dim=-1)
        out.append((query @ (shares @ key).T / 8**0.5).softmax(dim=-1) @ (shares @ value))
    return torch.stack(out).view_as(inputs[0])


def recurrent(built: Luna, inputs: list[Tensor], valid: Tensor) -> Tensor:
    """Causal Luna token by token, with running sums of a kᵀ and a vᵀ for packing weights a."""
    out = []
    for b, h in torch.cartesian_prod(torch.arange(3), torch.arange(2)).tolist():
        keys = values = torch.zeros(built.options.packed_length, 8, dtype=torch.float64)
        count = 0
        for query, key, value, context, real in zip(*(t[b, h] for t in inputs), valid[b], strict=True):
            if real:
                shares = torch.nn.functional.elu(built.packed_query[h] @ context / 8**0.5) + 1
                keys, values = keys + torch.outer(shares, key), values + torch.outer(shares, value)
                count += 1
            weights = (keys @ query / 8**0.5 / max(count, 1)).softmax(dim=-1)
            out.append(weights @ values / max(count, 1))
    return torch.stack(out).view_as(inputs[0])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("packed_length", [2, 8, 40])
def test_equals_nested_attention(padded, packed_length):
    for n, queries in ((33, None), (33, 7), (1, 5)):
        built = build(n, queries=queries, packed_length=packed_length)
        inputs, valid = several(4, queries or n, keys=n), padding(n) if padded else torch.ones(3, n, dtype=torch.bool)
        found, expected = partial(call, built, inputs, valid if padded else None), nested(built, inputs, valid)
        require_same_in(FORMS, built, found, expected, [*inputs, *built.parameters()])


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("n", [1, 16, 39])
def test_causally_equals_its_recurrence(monkeypatch, padded, n):
    monkeypatch.setattr(chunks, "CHUNK", 8)
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 3 * 2 * 8 * 8 * 16)  # two chunks
    built, inputs = build(n, causal=True), several(4, n)
    valid = padding(n) if padded else torch.ones(3, n, dtype=torch.bool)
    found, expected = partial(call, built, inputs, valid if padded else None), recurrent(built, inputs, valid)
    require_same_in(FORMS, built, found, expected, [*inputs, *built.parameters()])


def test_packing_before_or_after_the_projection_is_the_same():
    """For one head, A (X W) equals (A X) W, the order of the paper."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 1, "luna", length=20, bias=False).double()
    tokens = torch.randn(2, 20, 8, dtype=torch.float64)
    state = layer.state_dict()
    context = tokens @ state["stream_projections.context.weight"].T
    packed = (state["mechanism.packed_query"] @ context.mT / 8**0.5).softmax(dim=-1) @ tokens
    query, key, value = (
        x @ state[f"projections.{name}.weight"].T for name, x in (("query", tokens), ("key", packed), ("value", packed))
    )
    mixed = (query @ key.mT / 8**0.5).softmax(dim=-1) @ value
    torch.testing.assert_close(layer(tokens), mixed @ state["out.weight"].T)


def test_causal_dropout_is_refused():
    with pytest.raises(UnsupportedError, match=r"luna\.dropout must be 0 if causal"):
        build(causal=True, dropout=0.1)
    with pytest.raises(UnsupportedError, match=r"luna\.dropout must be 0 if causal"):
        MultiHeadAttention(16, 2, length=8, attention="luna", causal=True, dropout=0.1)
