"""Gated linear attention in single precision, whatever its gates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attn_zoo import Geometry, build_attention


def call(inputs: list[Tensor], implementation: str) -> Tensor:
    n = inputs[2].shape[2]
    built = build_attention("gated_linear", Geometry(2, 8, n, n, causal=True), implementation=implementation, normalise=False)
    out: Tensor = built(*inputs[:3], streams={"gate": inputs[3]})
    return out


@pytest.mark.parametrize("implementation", ["eager", "tiled"])
@pytest.mark.parametrize("sharpness", [1.0, 100.0, 3000.0])
def test_any_gate_is_exact_in_single_precision(implementation, sharpness):
    """A chunk of the usual size holds gates that forget almost everything beside gates that keep almost everything."""
    generator = torch.Generator().manual_seed(1)
    query, key, value, gate = (torch.randn(3, 2, 200, 8, generator=generator) for _ in range(4))
    single = [x.requires_grad_() for x in (query, key, value, sharpness * gate)]
    double = [x.detach().double().requires_grad_() for x in single]
    outs = call(single, implementation), call(double, "definition")
    torch.testing.assert_close(outs[0].double(), outs[1], rtol=0, atol=1e-5 * outs[1].abs().max().item())
    for mine, theirs in zip(*(torch.autograd.grad(o.sum(), x) for o, x in zip(outs, (single, double), strict=True)), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=2e-5 * theirs.abs().max().item())
