"""Entmax attention against its equation, written out with a full sort in float64."""

from __future__ import annotations

import math
from functools import cache

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


@cache
def expected(alpha: float, causal: bool, padded: bool) -> Tensor:
    return written_out(*draw(scale=1.5), padding() if padded else None, alpha, causal).detach()


def padding() -> Tensor:
    valid = torch.arange(33) < torch.tensor([33, 20, 1])[:, None]
    valid[1, :3] = False
    return valid


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("implementation", "block"), [("definition", None), ("tiled", 1), ("tiled", 200), ("tiled", 10**6)])
def test_equals_the_equation(monkeypatch, alpha, causal, padded, implementation, block):
    if block:
        monkeypatch.setattr(_tiling, "BLOCK", block)
    built = build_attention("entmax", Geometry(2, 8, 33, 33, causal), alpha=alpha, implementation=implementation)
    found = built(*draw(scale=1.5), key_valid=padding() if padded else None)
    torch.testing.assert_close(found, expected(alpha, causal, padded), rtol=0, atol=1e-11)


def test_more_queries_than_keys():
    built = build_attention("entmax", Geometry(2, 8, 50, 20))
    inputs = draw(50, keys=20, scale=1.5)
    torch.testing.assert_close(built(*inputs), written_out(*inputs, None, 1.5, False), rtol=0, atol=1e-12)
