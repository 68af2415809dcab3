"""Softmax and Longformer with sinks against gpt-oss in transformers and flash-linear-attention's plain form (extra ``peers``)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peer_layers import fla_naive
from torch import Tensor, nn

from attn_zoo import Attention, Geometry, build_attention

N, HEADS, D, WINDOW = 37, 3, 8, 6
CASES: list[tuple[str, str, dict[str, Any]]] = [("softmax", "eager", {}), ("softmax", "sdpa", {})]
CASES += [("longformer", form, {"window": WINDOW + 1, "global_tokens": 0}) for form in ("eager", "tiled")]


def draw(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(2, HEADS, N, D, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]


def gpt_oss(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, window: int) -> Tensor:
    """Attend with the function of gpt-oss; its window counts the token itself."""
    theirs: Any = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    distance = torch.arange(N)[:, None] - torch.arange(N)
    mask = torch.zeros(N, N, dtype=torch.float64).masked_fill((distance < 0) | (distance >= window), float("-inf"))
    module = SimpleNamespace(num_key_value_groups=1, sinks=sinks, training=False)
    out: Tensor = theirs.eager_attention_forward(module, query, key, value, mask, scaling=D**-0.5)[0]
    return out.transpose(1, 2)


def fla(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, window: int) -> Tensor:
    pytest.importorskip("fla", reason="flash-linear-attention is not installed (extra: peers)")
    rows = (x.transpose(1, 2) for x in (query, key, value))
    out: Tensor = fla_naive("attn").naive_parallel_attn(*rows, window_size=window, sink_bias=sinks)[0]
    return out.transpose(1, 2)


@pytest.mark.parametrize("peer", [gpt_oss, fla])
@pytest.mark.parametrize(("name", "implementation", "options"), CASES, ids=str)
def test_sinks(name, implementation, options, peer):
    ours: Attention = build_attention(name, Geometry(HEADS, D, N, N, True), implementation=implementation, sinks=True, **options)
    ours.double()
    assert isinstance(ours.sinks, nn.Parameter)
    with torch.no_grad():
        ours.sinks.copy_(torch.tensor([-1.0, 0.5, 3.0]))
    mine, other, sinks = draw(1), draw(1), ours.sinks.detach().clone().requires_grad_()
    out, expected = ours(*mine), peer(*other, sinks, options.get("window", N))
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-11)
    for of in (out, expected):
        of.square().sum().backward()
    for own, their in zip([*mine, ours.sinks], [*other, sinks], strict=True):
        torch.testing.assert_close(own.grad, their.grad, rtol=1e-9, atol=1e-11)
