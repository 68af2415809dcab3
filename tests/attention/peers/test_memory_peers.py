"""Linear and gated linear attention and the delta rule against flash-linear-attention's plain references (extra ``peers``)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from peer_layers import fla_naive
from torch import Tensor

from attn_zoo import Geometry, build_attention

pytest.importorskip("fla", reason="flash-linear-attention is not installed (extra: peers)")

N, HEADS, D = 128, 2, 8


def draw(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, HEADS, N, D, dtype=torch.float64, generator=generator).to(dtype).requires_grad_() for _ in range(4)]


def assert_equal(out: Tensor, expected: Tensor, mine: list[Tensor], other: list[Tensor], atol: float) -> None:
    torch.testing.assert_close(out, expected, rtol=0, atol=atol)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    for own, their in zip(mine, other, strict=True):
        torch.testing.assert_close(own.grad, their.grad, rtol=0, atol=10 * atol)


def by_position(*tensors: Tensor) -> list[Tensor]:
    """Swap heads and length: the references take (batch, length, heads, width)."""
    return [x.transpose(1, 2) for x in tensors]


@pytest.mark.parametrize("form", ["naive_chunk_linear_attn", "naive_recurrent_linear_attn"])
@pytest.mark.parametrize("feature_map", ["elu", "softmax"])
def test_linear_attention(form, feature_map):
    """The references add 1e-10 to divisors, and the recurrent one computes in float32."""
    phi = {"elu": lambda x: F.elu(x) + 1, "softmax": lambda x: x.softmax(dim=-1)}[feature_map]
    mine, other = draw()[:3], draw()[:3]
    out = build_attention("linear", Geometry(HEADS, D, N, N, True), feature_map=feature_map)(*mine)
    found: Any = getattr(fla_naive("linear_attn"), form)(
        *by_position(phi(other[0]), phi(other[1]), other[2]), scale=1.0, normalize=True
    )
    expected = found[0] if isinstance(found, tuple) else found
    if form == "naive_chunk_linear_attn":
        assert_equal(out, expected.transpose(1, 2), mine, other, 1e-8)
    else:
        torch.testing.assert_close(out, expected.transpose(1, 2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("feature_map", ["silu", "none"])
@pytest.mark.parametrize("temperature", [1.0, 16.0])
def test_gated_linear_attention(temperature, feature_map):
    """The reference computes in float32."""
    mine, other = draw(), draw()
    options = {"temperature": temperature, "normalise": False, "feature_map": feature_map}
    out = build_attention("gated_linear", Geometry(HEADS, D, N, N, True), **options)(*mine[:3], streams={"gate": mine[3]})
    gates = F.logsigmoid(other[3]) / temperature
    query, key = (F.silu(x) if feature_map == "silu" else x for x in other[:2])
    expected, _ = fla_naive("gla").naive_recurrent_gla(*by_position(query, key, other[2], gates))
    assert_equal(out, expected.transpose(1, 2), mine, other, 1e-5)


@pytest.mark.parametrize("form", ["delta_rule_chunkwise", "delta_rule_recurrence"])
def test_delta_rule(form):
    """The references divide queries by √d and take unit queries and keys; the recurrent one computes in float32."""
    mine, other = draw(), draw()
    ours = build_attention("delta_rule", Geometry(HEADS, D, N, N, True), normalise=False)
    out = ours(*mine[:3], streams={"strength": mine[3].sum(dim=-1, keepdim=True) * D**-0.5})
    query, key = (F.silu(x) for x in other[:2])
    query, key = (x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + 1e-6) for x in (query, key))
    beta = (other[3].sum(dim=-1) * D**-0.5).sigmoid()
    expected, _ = getattr(fla_naive("delta_rule"), form)(query * D**0.5, key, other[2], beta)
    assert_equal(out, expected, mine, other, 1e-9 if form == "delta_rule_chunkwise" else 1e-5)
