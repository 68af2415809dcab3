"""Entmax attention against its equation, written out with a full sort in float64."""

from __future__ import annotations

import math

import pytest
import torch
from test_normalisers import defined
from torch import Tensor
from written_out import draw

from attn_zoo import Geometry, build_attention
from attn_zoo.kernels.cpu import _tiling

ALPHAS = [1.0, 1.25, 1.5, 2.0]


def written_out(query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None, alpha: float, causal: bool) -> Tensor:
    """Entmax attention of one query at a time over the keys that it may see."""
    out = torch.zeros_like(query)
    for b, h, i in torch.cartesian_prod(*map(torch.arange, query.shape[:3])).tolist():
        seen = torch.ones(key.shape[2], dtype=torch.bool) if valid is None else valid[b].clone()
        if causal:
            seen[i + 1 :] = False
        if seen.any():
            weights = defined((key[b, h, seen] @ query[b, h, i] / math.sqrt(8))[None], alpha)
            out[b, h, i] = weights[0] @ value[b, h, seen]
    return out


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("implementation", "block"), [("definition", None), ("tiled", 1), ("tiled", 200), ("tiled", 10**6)])
def test_equals_the_equation(monkeypatch, alpha, causal, padded, implementation, block):
    if block:
        monkeypatch.setattr(_tiling, "BLOCK", block)
    built = build_attention("entmax", Geometry(2, 8, 33, 33, causal), alpha=alpha, implementation=implementation)
    valid = torch.arange(33) < torch.tensor([33, 20, 1])[:, None] if padded else None
    if valid is not None:
        valid[1, :3] = False
    inputs = draw(scale=1.5)
    expected = written_out(*inputs, valid, alpha, causal)
    torch.testing.assert_close(built(*inputs, key_valid=valid), expected, rtol=0, atol=1e-11)


def test_more_queries_than_keys():
    built = build_attention("entmax", Geometry(2, 8, 50, 20))
    inputs = draw(50, keys=20, scale=1.5)
    torch.testing.assert_close(built(*inputs), written_out(*inputs, None, 1.5, False), rtol=0, atol=1e-12)


def test_weights_are_zero_for_most_keys():
    """With V = I, the output equals the weights."""
    built = build_attention("entmax", Geometry(1, 64, 64, 64))
    query, key = (3 * torch.randn(2, 1, 64, 64, generator=torch.Generator().manual_seed(0))).unsqueeze(1)
    weights = built(query, key, torch.eye(64)[None, None])
    assert 0.02 < (weights > 0).float().mean() < 0.2
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, 64))


def test_nothing_quadratic_is_kept_or_made():
    """The tiled form saves two numbers for each query, and its largest tensor, forward and backward, is a block."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            self.numbers = max([self.numbers, *(t.numel() for t in tree_leaves(result) if isinstance(t, Tensor))])
            return result

    n = 3000
    built = build_attention("entmax", Geometry(1, 4, n, n), implementation="tiled")
    inputs = [torch.randn(1, 1, n, 4, requires_grad=True) for _ in range(3)]
    with Largest() as largest:
        built(*inputs).sum().backward()
    assert largest.numbers <= _tiling.BLOCK < n * n


def test_causal_leaves_out_half_of_the_work():
    from attn_zoo import card

    whole, half = (
        card("entmax").cost(Geometry(4, 64, 2**14, 2**14, causal), card("entmax").options()).flops for causal in (False, True)
    )
    assert 0.5 < half / whole < 0.51


@pytest.mark.peers
def test_equals_the_package_entmax_in_a_layer():
    peer = pytest.importorskip("entmax", reason="the extra `peers` is not installed")
    built = build_attention("entmax", Geometry(2, 8, 33, 33))
    mine, other = (draw(scale=1.5) for _ in range(2))
    query, key, value = other
    found, expected = built(*mine), peer.entmax15(query @ key.mT / math.sqrt(8), dim=-1) @ value
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    found.square().sum().backward()
    expected.square().sum().backward()
    for got, want in zip(mine, other, strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=0, atol=1e-10)
