"""Performer against its features written out, and the statistics its paper claims for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from written_out import builder, draw, require_same

from attn_zoo import Geometry, build_attention
from attn_zoo.attention.linear import performer
from attn_zoo.attention.linear.performer import Performer
from attn_zoo.kernels.cpu import _tiling as in_cache

build = builder(Performer)


def features(built: Performer, x: Tensor) -> Tensor:
    """Feature map φ as printed in the paper, without a stabiliser."""
    x, m = x * x.shape[-1] ** -0.25, built.options.features
    projected = torch.einsum("bhnd,md->bhnm", x, built.directions)
    if built.options.kernel.name == "relu":
        return projected.relu() / m**0.5 + 1e-3
    return (projected - x.pow(2).sum(-1, keepdim=True) / 2).exp() / m**0.5


def written_out(built: Performer, inputs: Sequence[Tensor], valid: Tensor | None) -> Tensor:
    """Attention with the n × n weights φ(Q) φ(K)ᵀ, masked and divided by their sums."""
    query, key, value = inputs
    weights = torch.einsum("bhqm,bhkm->bhqk", features(built, query), features(built, key))
    if built.geometry.causal:
        weights = weights.tril()
    if valid is not None:
        weights = weights * valid[:, None, None, :]
    return torch.einsum("bhqk,bhkd->bhqd", weights / weights.sum(-1, keepdim=True), value)


@pytest.mark.parametrize("kernel", ["softmax", "relu"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("n", [1, 33, 100])
@pytest.mark.parametrize("implementation", ["eager", "tiled"])
def test_equals_its_features_written_out(kernel, causal, padded, n, implementation, monkeypatch):
    monkeypatch.setattr(performer, "CHUNK", 16)
    monkeypatch.setattr(in_cache, "CACHE_BYTES", 2**12)
    built, inputs = build(n, causal=causal, kernel=kernel, features=24, implementation=implementation), draw(n)
    valid = torch.arange(n) < torch.tensor([n, max(1, n // 2), 1])[:, None] if padded else None
    require_same(built(*inputs, key_valid=valid), written_out(built, inputs, valid), inputs, atol=1e-11)


@pytest.mark.parametrize("kernel", ["softmax", "relu"])
@pytest.mark.parametrize("implementation", ["eager", "tiled"])
def test_nothing_is_lost_in_single_precision_whatever_the_scale(kernel, implementation, monkeypatch):
    monkeypatch.setattr(in_cache, "CACHE_BYTES", 2**12)
    built, (query, key, value) = build(100, kernel=kernel, features=24, implementation=implementation), draw(100, scale=6.0)
    logs = {}
    for name, x in (("query", query), ("key", key)):
        projected = torch.einsum("bhnd,md->bhnm", x * 8**-0.25, built.directions)
        half = 0.0 if name == "query" else (x * 8**-0.25).pow(2).sum(-1, keepdim=True) / 2
        logs[name] = projected - half if kernel == "softmax" else (projected.relu() / 24**0.5 + 1e-3).log()
    assert kernel == "relu" or logs["key"].amin() < -104, "exponentials in float32 would do"
    weights = torch.logsumexp(logs["query"][:, :, :, None] + logs["key"][:, :, None], dim=-1).softmax(dim=-1)
    got = built.float()(query.float(), key.float(), value.float())
    torch.testing.assert_close(got.double(), weights @ value, rtol=0, atol=2e-4)


@torch.no_grad()
def products(query: Tensor, key: Tensor, draws: int, **options) -> Tensor:
    """Return φ(Q) φ(K)ᵀ for a number of draws of the directions, (draws, batch, heads, queries, keys)."""
    built, found = build(query.shape[2], **options), []
    for seed in range(draws):
        torch.manual_seed(seed)
        built.redraw()
        found.append(torch.einsum("bhqm,bhkm->bhqk", *(features(built, x) for x in (query, key))))
    return torch.stack(found)


def test_features_are_unbiased_for_the_softmax_kernel():
    query, key, _ = draw(5, scale=0.7)
    kernel = (query @ key.mT / 8**0.5).exp()
    for orthogonal in (True, False):
        made = products(query, key, 400, features=64, orthogonal=orthogonal)
        error = made.std(0) / 400**0.5
        assert ((made.mean(0) - kernel).abs() / error).max() < 5, "the mean over draws is further off than chance allows"


def test_orthogonal_directions_lower_the_variance():
    query, key, _ = draw(9, scale=0.7)
    orthogonal, independent = (products(query, key, 600, features=8, orthogonal=each).var(0).mean() for each in (True, False))
    assert orthogonal < 0.95 * independent


def test_directions_are_orthogonal_in_blocks_with_gaussian_lengths():
    rows = build(features=4096).directions
    block = rows[:8]
    off = block @ block.T - torch.diag(block.square().sum(1))
    assert off.abs().max() < 1e-5  # drawn in float32
    assert rows.square().sum(1).mean().item() == pytest.approx(8.0, rel=0.05)


def test_redraws_in_training_only_and_on_request():
    built = build(redraw=2)
    first = built.directions.clone()
    built.eval()
    for _ in range(3):
        built(*draw())
    assert torch.equal(built.directions, first)
    built.train()
    built(*draw())
    second = built.directions.clone()
    assert not torch.equal(second, first)
    built(*draw())
    assert torch.equal(built.directions, second), "redraw=2 keeps a draw for two training calls"
    built(*draw())
    assert not torch.equal(built.directions, second)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("orthogonal", [False, True])
def test_features_of_16_bits_are_those_of_float32_rounded(default, orthogonal):
    def drawn() -> list[Tensor]:
        torch.manual_seed(0)
        built = build_attention("performer", Geometry(2, 8, 33, 33), features=24, orthogonal=orthogonal, redraw=1).train()
        assert isinstance(built, Performer)
        first = built.directions
        built(*(x.to(first.dtype) for x in draw()))  # draws again
        return [first, built.directions]

    single, before = drawn(), torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        half = drawn()
    finally:
        torch.set_default_dtype(before)
    assert not torch.equal(*half)
    for found, want in zip(half, single, strict=True):
        torch.testing.assert_close(found, want.to(default), rtol=0, atol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_a_redraw_between_two_calls_leaves_the_gradients_of_both(causal):
    built, (query, key, value) = build(causal=causal, redraw=1).train(), draw()
    torch.manual_seed(3)
    outs = [built(query, key, value) for _ in range(2)]
    (outs[0].sum() + outs[1].square().sum()).backward()
    assert not torch.equal(outs[0], outs[1]) and query.grad is not None and bool(query.grad.isfinite().all())
