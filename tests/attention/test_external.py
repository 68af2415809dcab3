"""External attention against both normalisations written out in float64, one position at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from written_out import builder, require_same, several, shown

from attn_zoo import MultiHeadAttention, UnsupportedError
from attn_zoo.attention.low_rank.external import External

build = builder(External)


def written_out(built: External, value: Tensor, valid: Tensor) -> Tensor:
    """External attention at valid positions: exp(scores) normalised over valid positions, then over memory units."""
    out = torch.zeros_like(value)
    for b, h in torch.cartesian_prod(torch.arange(3), torch.arange(2)).tolist():
        own = h if built.options.own_units else 0
        powers = (value[b, h] @ built.memory_keys[own].T).exp()
        for i in valid[b].nonzero()[:, 0].tolist():
            shares = powers[i] / powers[valid[b]].sum(dim=0)
            out[b, h, i] = shares / shares.sum() @ built.memory_values[own]
    return out


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("options", [{}, {"own_units": True, "units": 5}, {"units": 40}], ids=str)
def test_equals_the_paper(padded, options):
    for n in (1, 2, 33):
        built, (value,) = build(n, implementation="definition", **options), several(1, n)
        valid = shown(n, padded)
        got = built(None, None, value, key_valid=valid if padded else None) * valid[:, None, :, None]
        require_same(got, written_out(built, value, valid), [value, *built.parameters()], atol=1e-13)


def test_shares_over_units_that_all_vanish_are_still_shares():
    """Scores lie thousands below the largest, so that their exponentials underflow in any precision."""
    built, value = build().float(), several(1, scale=1e3)[0].detach().float()
    value.requires_grad_()
    out = built(None, None, value)
    assert out.isfinite().all()
    assert out.abs().amax() <= built.memory_values.abs().max()
    (grad,) = torch.autograd.grad(out.sum(), value)
    assert grad.isfinite().all()


def test_heads_share_the_units_unless_asked():
    assert build(units=16).memory_keys.shape == (1, 16, 8)
    assert build(units=16, own_units=True).memory_values.shape == (2, 16, 8)


def test_a_layer_makes_one_projection():
    layer = MultiHeadAttention(16, 2, "external", length=32)
    assert list(layer.projections) == ["value"]
    assert layer(torch.randn(3, 20, 16)).shape == (3, 20, 16)
    with pytest.raises(UnsupportedError, match="same tokens"):
        MultiHeadAttention(16, 2, "external", length=32, context_length=32)
