"""The controls that mix positions without comparing them, against their equations in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from written_out import builder

from attn_zoo import Geometry, build_attention, card
from attn_zoo.attention.controls.convolution import LocalConvolution
from attn_zoo.attention.controls.frozen_random import FrozenRandom

both = pytest.mark.parametrize("causal", [False, True])


def draw(n: int = 33, batch: int = 3) -> Tensor:
    return torch.randn(batch, 2, n, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def padding(n: int = 33) -> Tensor:
    valid = torch.arange(n) < torch.tensor([n, 2 * n // 3, n])[:, None]
    valid[2, 1::3] = False
    return valid


def test_all_are_controls():
    assert all(card(name).control for name in ("none", "uniform", "convolution", "frozen_random"))


convolution = builder(LocalConvolution)


@both
@pytest.mark.parametrize("kernel", [1, 5, 9])
@pytest.mark.parametrize("padded", [False, True])
def test_convolution_equals_its_equation(causal, kernel, padded):
    built, value = convolution(kernel=kernel, causal=causal), draw()
    valid = padding() if padded else torch.ones(3, 33, dtype=torch.bool)
    first = -(kernel - 1) if causal else -(kernel // 2)
    expected = torch.zeros_like(value)
    for i in range(33):
        for t in range(kernel):
            j = i + first + t
            if 0 <= j < 33:
                expected[:, :, i] += built.weight[:, t] * value[:, :, j] * valid[:, None, j, None]
    got = built(None, None, value, key_valid=valid if padded else None)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-13)


@both
def test_convolution_is_pytorchs_depthwise_one(causal):
    built, value = convolution(kernel=5, causal=causal), draw()
    channels = value.transpose(2, 3).flatten(1, 2)
    weight = built.weight.transpose(1, 2).flatten(0, 1)[:, None]
    ends = (4, 0) if causal else (2, 2)
    want = F.conv1d(F.pad(channels, ends), weight, groups=16).unflatten(1, (2, 8)).transpose(2, 3)
    torch.testing.assert_close(built(None, None, value), want, rtol=0, atol=1e-13)


frozen = builder(FrozenRandom, links=8)


def matrix(built: FrozenRandom, valid: Tensor) -> Tensor:
    """Return the attention matrix of each head, (heads, n, n), filled link by link."""
    links, heads, n = built.weights.shape
    found = torch.zeros(heads, n, n, dtype=torch.float64)
    for h in range(heads):
        for i in range(n):
            seen = [(int(built.sources[r, h * n + i]) - h * n, built.weights[r, h, i]) for r in range(links)]
            seen = [(j, w) for j, w in seen if valid[j]]
            total = sum(w for _, w in seen)
            for j, w in seen:
                found[h, i, j] += w / total
    return found


@both
@pytest.mark.parametrize("links", [1, 8])
@pytest.mark.parametrize("padded", [False, True])
def test_frozen_random_equals_its_equation(causal, links, padded):
    built, value = frozen(links=links, causal=causal), draw()
    valid = padding() if padded else torch.ones(3, 33, dtype=torch.bool)
    want = torch.stack([matrix(built, valid[b]) @ value[b] for b in range(3)])
    got = built(None, None, value, key_valid=valid if padded else None)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-13)


@both
def test_frozen_random_is_row_stochastic_sparse_and_sees_itself(causal):
    built = frozen(causal=causal, n=200)
    weights = matrix(built, torch.ones(200, dtype=torch.bool))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 200, dtype=torch.float64))
    assert (weights.diagonal(dim1=1, dim2=2) > 0).all()
    assert (weights > 0).sum(-1).max() <= 8
    assert (weights > 0).sum() > 0.9 * 2 * 200 * 8 * (0.9 if causal else 1)
    assert not causal or (weights.triu(1) == 0).all()


def test_frozen_random_reaches_all_positions_alike():
    built = frozen(links=65, n=50)
    others = built.sources[1:].unflatten(1, (2, 50)) - 50 * torch.arange(2)[:, None]
    counts = others.flatten().bincount(minlength=50).double()
    assert (counts - 128).abs().max() < 5 * 128**0.5
    means = (built.weights / built.weights.sum(0)).mean(dim=(1, 2))
    torch.testing.assert_close(means, torch.full_like(means, 1 / 65), rtol=0.5, atol=0)


def test_frozen_random_needs_a_link():
    with pytest.raises(ValueError, match=r"frozen_random\.links must be at least 1, because it counts positions, .*; got 0"):
        frozen(links=0)


@both
def test_the_uniform_average_of_large_values_is_finite_in_float16(causal):
    value = torch.full((1, 1, 4096, 2), 40.0, dtype=torch.float16)
    out = build_attention("uniform", Geometry(1, 2, 4096, 4096, causal))(None, None, value)
    torch.testing.assert_close(out, value)
