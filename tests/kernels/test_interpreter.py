"""The repaired bfloat16 of the interpreter rounds and computes as the format requires."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from interpreter import from_bfloat16, to_bfloat16

from attn_zoo.kernels.linformer import launch

pytestmark = pytest.mark.skipif(not launch.INTERPRETED, reason="the interpreter is for machines without a GPU")


@triton.jit
def add_and_multiply(x_pointer, y_pointer, sum_pointer, product_pointer, dot_pointer, SIZE: tl.constexpr):
    rows = tl.arange(0, SIZE)
    places = rows[:, None] * SIZE + rows[None, :]
    x, y = tl.load(x_pointer + places), tl.load(y_pointer + places)
    tl.store(sum_pointer + places, x + 0.75 * y)
    tl.store(product_pointer + places, tl.where(x < y, x * y, -x))
    tl.store(dot_pointer + places, tl.dot(x, y).to(tl.bfloat16))


def test_rounds_as_torch_does():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(10000, generator=generator) * torch.logspace(-30, 30, 10000)
    found = torch.from_numpy(from_bfloat16(to_bfloat16(values.numpy())))
    assert torch.equal(found, values.bfloat16().float())


def test_computes_as_torch_does():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(32, 32, generator=generator).bfloat16() for _ in range(2))
    total, product, dot = (torch.empty_like(x) for _ in range(3))
    add_and_multiply[(1,)](x, y, total, product, dot, SIZE=32)
    assert torch.equal(total, x + 0.75 * y)
    assert torch.equal(product, torch.where(x < y, x * y, -x))
    torch.testing.assert_close(dot.float(), (x.float() @ y.float()).bfloat16().float(), rtol=2**-8, atol=1e-6)
