"""Gated slot attention: slots that forget at equal rates hold the same average."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from attn_zoo import Geometry, build_attention

HEADS, D = 2, 8


@pytest.mark.parametrize("n", [1, 70])
def test_slots_with_equal_gates_give_a_moving_average_of_the_values(n):
    mechanism = build_attention("gated_slot", Geometry(HEADS, D, n, n, causal=True), normalise=False, temperature=1.0).double()
    query, key, value, gate = torch.randn(4, 2, HEADS, n, D, dtype=torch.float64)
    gate = gate[..., :1].expand_as(gate)
    alpha, average, expected = gate.sigmoid().clamp(min=torch.tensor(-3.75).double().exp()), torch.zeros_like(value[:, :, 0]), []
    for t in range(n):
        average = alpha[:, :, t] * average + (1 - alpha[:, :, t]) * F.silu(value[:, :, t])
        expected.append(average)
    out = mechanism(query, key, value, streams={"gate": gate})
    torch.testing.assert_close(out, torch.stack(expected, dim=2), rtol=1e-10, atol=1e-10)
