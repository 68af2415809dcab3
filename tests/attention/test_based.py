"""Based: nearly softmax attention at small scores, and mistakes that the kit catches."""

from __future__ import annotations

import pytest
import torch
from mistakes import require_caught
from torch import Tensor

from attn_zoo import Geometry, build_attention
from attn_zoo.attention.linear.based import Based

HEADS, D, N = 2, 6, 40


def test_small_scores_give_nearly_softmax_attention():
    geometry = Geometry(HEADS, D, N, N, causal=True)
    based, softmax = build_attention("based", geometry, channels=D).double(), build_attention("softmax", geometry).double()
    query, key, value = (torch.randn(2, HEADS, N, D, dtype=torch.float64) for _ in range(3))
    gaps = [(based(s * query, key, value) - softmax(s * query, key, value)).abs().max().item() for s in (0.1, 0.01)]
    assert 0 < gaps[1] < 2e-3 * gaps[0], "the first term left out is cubic in the scores"


def lets_padding_keep_its_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feature 1 of a padded key stays, so padding counts in the sum of weights."""
    right = Based.phi
    monkeypatch.setattr(Based, "phi", lambda self, x, valid=None, start=0: right(self, x))


def forgets_the_half(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Based.phi

    def wrong(self: Based, x: Tensor, valid: Tensor | None = None, start: int = 0) -> Tensor:
        phi, f = right(self, x, valid, start), min(self.options.channels, x.shape[-1])
        return torch.cat([phi[..., : 1 + f], 2**0.5 * phi[..., 1 + f :]], dim=-1)

    monkeypatch.setattr(Based, "phi", wrong)


@pytest.mark.variants
@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        (lets_padding_keep_its_constant, "padding_gets_no_weight"),
        (forgets_the_half, "eager_agrees_with_the_definition"),
    ],
)
def test_the_kit_catches_mistakes(mistake, check, monkeypatch):
    require_caught("based", f"default-eager-{check}", mistake, monkeypatch)
