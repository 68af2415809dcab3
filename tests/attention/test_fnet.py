"""FNet against the two Fourier matrices, written out in float64."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from torch import Tensor

from attn_zoo import Geometry, build_attention


def fourier(n: int) -> Tensor:
    """exp(-2πi j k / n) / √n."""
    table = [[cmath.exp(-2j * math.pi * (j * k % n) / n) / math.sqrt(n) for k in range(n)] for j in range(n)]
    return torch.tensor(table, dtype=torch.complex128)


def written_out(value: Tensor) -> Tensor:
    """Re F_n V F_D with the heads side by side."""
    batch, heads, n, d = value.shape
    out = torch.empty_like(value)
    for b in range(batch):
        tokens = torch.cat(list(value[b]), dim=-1).to(torch.complex128)
        mixed = (fourier(n) @ tokens @ fourier(heads * d)).real
        out[b] = torch.stack(mixed.split(d, dim=-1))
    return out


@pytest.mark.parametrize("n", [1, 2, 7, 32, 33])
@pytest.mark.parametrize(("heads", "d"), [(1, 1), (1, 2), (1, 5), (2, 8), (3, 3)])
def test_equals_the_equation(n, heads, d):
    value = torch.randn(2, heads, n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    built = build_attention("fnet", Geometry(heads, d, n, n))
    torch.testing.assert_close(built(None, None, value), written_out(value), rtol=0, atol=1e-12)
    other = value.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(built(None, None, value).square().sum(), value)
    (want,) = torch.autograd.grad(written_out(other).square().sum(), other)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-12)


def test_the_scale_of_the_values_is_kept_whatever_the_length():
    for n in (64, 1024):
        value = torch.randn(1, 4, n, 16, generator=torch.Generator().manual_seed(0))
        assert build_attention("fnet", Geometry(4, 16, n, n))(None, None, value).std().item() == pytest.approx(0.5**0.5, rel=0.05)
