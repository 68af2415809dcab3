"""Gated slot attention: slots that forget at equal rates hold the same average, and mistakes that the kit catches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from mistakes import require_caught
from torch import Tensor

from attn_zoo import Geometry, build_attention
from attn_zoo.attention.linear.gated_slot import GatedSlot

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


def forgets_one_token_late(monkeypatch: pytest.MonkeyPatch) -> None:
    right = GatedSlot.by_chunks

    def late(self: GatedSlot, rows: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
        return right(self, [*rows[:3], F.pad(rows[3][:, :, :-1], (0, 0, 1, 0))], state)

    monkeypatch.setattr(GatedSlot, "by_chunks", late)


def reads_the_whole_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "tril", lambda self: self)


def forgets_at_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    right = GatedSlot.rows
    monkeypatch.setattr(GatedSlot, "rows", lambda self, q, k, v, key_valid, **streams: right(self, q, k, v, None, **streams))


@pytest.mark.variants
@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        (forgets_one_token_late, "eager_agrees_with_the_definition"),
        (reads_the_whole_chunk, "causal_output_ignores_the_future"),
        (forgets_at_padding, "padding_position_does_not_matter"),
    ],
)
def test_the_kit_catches_mistakes(mistake, check, monkeypatch):
    require_caught("gated_slot", f"raw-eager-{check}", mistake, monkeypatch)
