"""Agent attention: one agent, agents as averages of equal parts, and mistakes that the kit catches."""

from __future__ import annotations

import pytest
import torch
from mistakes import require_caught
from torch import Tensor

from attn_zoo import Geometry, build_attention
from attn_zoo.attention.low_rank import agent
from attn_zoo.attention.low_rank.nystrom import landmarks

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


def pools_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "landmarks", lambda most, valid, query: landmarks(most, None, query))


def shows_agents_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    right = agent.Agent.mixed
    monkeypatch.setattr(
        agent.Agent, "mixed", lambda self, softmax, *given: right(self, lambda q, k, v, _: softmax(q, k, v, None), *given)
    )


@pytest.mark.variants
@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        (pools_padding, "padded_queries_have_no_influence"),
        (pools_padding, "padding_amounts_to_shorter_inputs"),
        (shows_agents_padding, "padding_amounts_to_shorter_inputs"),
    ],
)
def test_the_kit_catches_mistakes(mistake, check, monkeypatch):
    require_caught("agent", f"default-eager-{check}", mistake, monkeypatch)
