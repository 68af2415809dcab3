"""Linear attention against its weights written out, in chunks, in blocks and token by token."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
import torch
from stepping import step
from torch import Tensor
from written_out import draw, require_same

from attn_zoo import Geometry, build_attention
from attn_zoo.attention.linear.linear import Linear
from attn_zoo.kernels.cpu import _chunks as chunks

MAPS = ("elu", "relu", "squared_relu", "softmax")

IMPLEMENTATION = "eager"


def build(n: int = 33, *, causal: bool = False, **options) -> Linear:
    built = build_attention("linear", Geometry(2, 8, n, n, causal), implementation=IMPLEMENTATION, **options)
    assert isinstance(built, Linear)
    return built


def phi(name: str, x: Tensor) -> Tensor:
    """Feature map φ as documented."""
    if name == "elu":
        return torch.nn.functional.elu(x) + 1
    if name == "softmax":
        return x.exp() / x.exp().sum(-1, keepdim=True)
    return x.relu() ** (2 if name == "squared_relu" else 1) + 1e-3


def written_out(inputs: Sequence[Tensor], *, name: str = "elu", causal: bool = False, valid: Tensor | None = None) -> Tensor:
    """Attention with weights φ(Q) φ(K)ᵀ, masked and divided by their sums."""
    query, key, value = inputs
    weights = torch.einsum("bhqm,bhkm->bhqk", phi(name, query), phi(name, key))
    if causal:
        weights = weights.tril()
    if valid is not None:
        weights = weights * valid[:, None, None, :]
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("bhqk,bhkd->bhqd", weights / total.masked_fill(total == 0, 1), value)


@pytest.fixture(params=["eager", "tiled"])
def small_blocks(request, monkeypatch):
    """Run each test with both implementations; the tiled one has chunks of 16 positions and blocks of one or two chunks."""
    monkeypatch.setattr(sys.modules[__name__], "IMPLEMENTATION", request.param)
    monkeypatch.setattr(chunks, "CHUNK", 16)
    monkeypatch.setattr(chunks, "BLOCK_BYTES", 3 * 2 * 8 * 8 * 32)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("n", [1, 16, 33, 100])
def test_equals_its_weights_written_out(name, causal, padded, n):
    built, inputs = build(n, causal=causal, feature_map=name), draw(n)
    lengths = torch.tensor([n, max(1, n // 2), 1])[:, None]
    valid = (torch.arange(n) < lengths) & ((torch.arange(n) % 5 != 2) | (torch.arange(n) == 0)) if padded else None
    require_same(built(*inputs, key_valid=valid), written_out(inputs, name=name, causal=causal, valid=valid), inputs)


def test_half_precision_keeps_its_sums_in_single():
    built, inputs = build(1000, causal=True), [x.detach() for x in draw(1000)]
    half = [x.bfloat16() for x in inputs]
    out, state = step(built, half, built.initial_state(3, dtype=torch.bfloat16))
    assert out.dtype is torch.bfloat16
    assert state.summed.dtype is torch.float32
    exact = written_out([x.double() for x in half], causal=True)
    torch.testing.assert_close(out.double(), exact, rtol=1e-2, atol=1e-2)


def test_small_features_are_not_rounded_away():
    """elu(x) + 1 in float32 is 0 at -20, and the average of such keys would be 0 / 0."""
    query, key, value = (x.detach() for x in draw())
    key = key - 20
    got = build()(*(x.float() for x in (query, key, value)))
    torch.testing.assert_close(got.double(), written_out([query, key, value]), rtol=1e-4, atol=1e-5)
