"""Attention with α-entmax against the normalisers of the package ``entmax`` (extra ``peers``) over all scores."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from attn_zoo import Geometry, build_attention

peer: Any = pytest.importorskip("entmax", reason="entmax is not installed (extra: peers)")

EXACT = {2.0: peer.sparsemax, 1.5: peer.entmax15}
BISECTED = {alpha: partial(peer.entmax_bisect, alpha=alpha, n_iter=60) for alpha in (1.2, 1.5, 1.75)}


@pytest.mark.parametrize(("alpha", "normalise"), [*EXACT.items(), *BISECTED.items()])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_equals_the_package(alpha, normalise, causal, padded):
    n = 40

    def draw() -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        return [2 * torch.randn(2, 2, n, 8, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]

    mine, other = ([x.detach().requires_grad_() for x in draw()] for _ in range(2))
    valid = torch.arange(n) < torch.tensor([n, n - 11])[:, None]
    out = build_attention("entmax", Geometry(2, 8, n, n, causal), alpha=alpha)(*mine, key_valid=valid if padded else None)
    scores = other[0] @ other[1].mT * 8**-0.5
    if padded:
        scores = scores.masked_fill(~valid[:, None, None], -1e6)
    if causal:
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -1e6)
    expected = normalise(scores, dim=-1) @ other[2]
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-8)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    for own, their in zip(mine, other, strict=True):
        torch.testing.assert_close(own.grad, their.grad, rtol=0, atol=1e-6)
