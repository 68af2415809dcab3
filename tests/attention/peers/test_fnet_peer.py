"""FNet against transformers' Fourier transform (extra ``peers``): the same but for the scale."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attn_zoo import Geometry, build_attention

peer: Any = pytest.importorskip("transformers.models.fnet.modeling_fnet", reason="transformers is not installed (extra: peers)")


@pytest.mark.parametrize(("n", "heads", "head_dim"), [(12, 2, 4), (13, 3, 5), (1, 1, 6)])
def test_equals_the_peer_divided_by_the_root_of_the_size(n, heads, head_dim):
    theirs = peer.FNetBasicFourierTransform(peer.FNetConfig(hidden_size=heads * head_dim, use_tpu_fourier_optimizations=False))
    ours = build_attention("fnet", Geometry(heads, head_dim, n, n))
    generator = torch.Generator()
    shape = (2, n, heads * head_dim)
    mine, other = (torch.randn(shape, dtype=torch.float64, generator=generator.manual_seed(1)).requires_grad_() for _ in range(2))
    out = ours(None, None, mine.unflatten(-1, (heads, head_dim)).transpose(1, 2)).transpose(1, 2).flatten(2)
    expected = theirs(other)[0] / (n * heads * head_dim) ** 0.5
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    (out**3).sum().backward()
    (expected**3).sum().backward()
    torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=1e-11)
