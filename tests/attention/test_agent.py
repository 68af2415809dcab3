"""Agent attention: one agent, agents as averages of equal parts."""

from __future__ import annotations

import torch
from torch import Tensor

from attn_zoo import Geometry, build_attention

HEADS, D, N = 2, 8, 36


def draw() -> list[Tensor]:
    return [torch.randn(2, HEADS, N, D, dtype=torch.float64) for _ in range(3)]


def test_one_agent_gives_every_query_what_the_mean_query_reads():
    query, key, value = draw()
    built = build_attention("agent", Geometry(HEADS, D, N, N), agents=1).double()
    read = (query.mean(dim=2, keepdim=True) @ key.mT * D**-0.5).softmax(dim=-1) @ value
    torch.testing.assert_close(built(query, key, value), read.expand_as(value))


def test_without_padding_agents_are_adaptive_averages():
    """The public layer pools queries by ``adaptive_avg_pool``, which has equal parts where m divides n."""
    query, key, value = draw()
    built = build_attention("agent", Geometry(HEADS, D, N, N), agents=9).double()
    agents = torch.nn.functional.adaptive_avg_pool1d(query.flatten(0, 1).mT, 9).mT.unflatten(0, (2, HEADS))
    held = torch.nn.functional.scaled_dot_product_attention(agents, key, value)
    expected = torch.nn.functional.scaled_dot_product_attention(query, agents, held)
    torch.testing.assert_close(built(query, key, value), expected, rtol=1e-10, atol=1e-12)
