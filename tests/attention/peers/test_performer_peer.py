"""Performer against performer-pytorch (extra ``peers``) with equal features, and deviations of that package from the paper."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attn_zoo import Geometry, build_attention
from attn_zoo.attention.linear._feature_maps import draw_directions
from attn_zoo.attention.linear.performer import RELU_FLOOR, Performer

peer: Any = pytest.importorskip("performer_pytorch.performer_pytorch", reason="performer-pytorch is not installed (extra: peers)")

N, D, M = 60, 16, 24


def draw() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, N, D, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]


def build(causal: bool, **options: Any) -> Performer:
    torch.manual_seed(0)
    built = build_attention("performer", Geometry(3, D, N, N, causal), features=M, **options).double()
    assert isinstance(built, Performer)
    return built


def theirs(ours: Performer, query: Tensor, key: Tensor, value: Tensor, *, eps: float, relu: bool, causal: bool) -> Tensor:
    """Attention by the peer's functions with our random directions."""
    given = {"projection_matrix": ours.directions}
    if relu:
        # The peer does not divide its ReLU features by √m, so its epsilon must be √m times as large as ours.
        query, key = (peer.generalized_kernel(x, kernel_epsilon=eps * math.sqrt(M), **given) for x in (query, key))
    else:
        query, key = (peer.softmax_kernel(x, is_query=which, eps=eps, **given) for x, which in ((query, True), (key, False)))
    out: Tensor = (
        peer.causal_linear_attention_noncuda(query, key, value, eps=0) if causal else peer.linear_attention(query, key, value)
    )
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_equals_the_peer_without_its_epsilon(causal, relu):
    ours = build(causal, kernel="relu" if relu else "softmax")
    mine, other = draw(), draw()
    out = ours(*mine)
    expected = theirs(ours, *other, eps=RELU_FLOOR if relu else 0.0, relu=relu, causal=causal)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    for own, their in zip(mine, other, strict=True):
        torch.testing.assert_close(own.grad, their.grad, rtol=0, atol=1e-9)


@torch.no_grad()
def test_the_peers_epsilon_outweighs_its_features_at_unit_scale():
    """Without the epsilon, the peer estimates the same weights as ours; with it, its output is nearly the mean of the values."""
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 1, 512, 64, dtype=torch.float64, generator=generator) for _ in range(3))
    torch.manual_seed(0)
    core = peer.FastAttention(64, nb_features=256).double()
    mean = value.mean(dim=2, keepdim=True)
    from_mean = (core(query, key, value) - mean).norm() / (value - mean).norm()
    ours = build_attention("performer", Geometry(1, 64, 512, 512), features=256).double()
    ours.get_buffer("directions").copy_(core.projection_matrix)
    assert from_mean < 0.05 < (ours(query, key, value) - mean).norm() / (value - mean).norm()


@torch.no_grad()
def test_the_peer_keeps_padded_keys_in_its_normaliser_and_ours_does_not():
    torch.manual_seed(0)
    layer = peer.SelfAttention(32, heads=2, dim_head=16, nb_features=24).double()
    tokens, valid = torch.randn(1, 40, 32, dtype=torch.float64), torch.arange(40) < 30
    assert (layer(tokens, mask=valid[None])[:, :30] - layer(tokens[:, :30])).abs().max() > 1e-3
    ours = build_attention("performer", Geometry(3, D, N, N), features=M).double()
    query, key, value = draw()
    padded = ours(query, key, value, key_valid=(torch.arange(N) < 45).expand(2, N))[:, :, :45]
    torch.testing.assert_close(padded, ours(*(x[:, :, :45] for x in (query, key, value))), rtol=0, atol=1e-11)


def test_directions_have_the_peers_distribution():
    """Directions are orthogonal within a block of head_dim and as long as Gaussian rows; only ours make the signs of QR uniform."""
    torch.manual_seed(0)
    for drawn in (draw_directions(2 * D, D, orthogonal=True), peer.gaussian_orthogonal_random_matrix(2 * D, D)):
        for block in (drawn[:D], drawn[D:]):
            products = block @ block.T
            torch.testing.assert_close(products, products.diagonal().diag(), rtol=0, atol=1e-4)
    lengths = torch.stack([draw_directions(D, D, orthogonal=True).norm(dim=-1) for _ in range(200)])
    their_lengths = torch.stack([peer.gaussian_orthogonal_random_matrix(D, D).norm(dim=-1) for _ in range(200)])
    assert abs(lengths.mean() - their_lengths.mean()) < 0.1 and abs(lengths.std() - their_lengths.std()) < 0.1
