"""Agent attention: Y = softmax(Q Aᵀ / √d) softmax(A Kᵀ / √d) V. The few agents A are means of consecutive queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_zoo.attention.low_rank.nystrom import KERNEL, Nystrom, landmarks, means_of_parts
from attn_zoo.contract import Capabilities, Cost, Geometry, bounded, share_of_length
from attn_zoo.registry import register_attention
from attn_zoo.shapes import Keys, KeyValid, Queries


@dataclass
class Options:
    """Options of agent attention."""

    agents: int = share_of_length(4, most=64)
    """m, the number of agents. If an input has fewer than m tokens, each token is an agent."""
    convolution: int = bounded(0, KERNEL)
    """Width, in positions, of a depthwise convolution of the values. Its result is added to the output. The width must be odd, or 0
    for no convolution. The paper uses 3.
    """


def cost(geometry: Geometry, options: Options) -> Cost:
    """Return the cost, with the FLOPs of four products: Q Aᵀ, A Kᵀ, and those of their softmax weights with values. For m agents,
    each takes n m d multiply-adds per head.

    A convolution of width w adds w multiply-adds per position and channel.
    """
    n, m, inner = geometry.keys, min(options.agents, geometry.keys), geometry.inner_dim
    flops = inner * (8 * n * m + 2 * options.convolution * n)
    return Cost(flops, parameters=geometry.heads * options.convolution, backward_flops=2 * flops)


@register_attention(
    "agent",
    title="Agent attention (convolution optional)",
    paper="Han et al. 2023, arXiv:2312.08874",
    equation="two softmax attentions, from agents to tokens and from tokens to agents",
    options=Options,
    can=Capabilities(causal=False, key_padding=True, cross=False, any_length=True),
    time="n m d",
    memory="n m + n d",
    cost=cost,
    implementations=("eager", "sdpa"),
    variants={"convolution": {"convolution": 3}, "few": {"agents": 3}, "many": {"agents": 48}},
)
class Agent(Nystrom):
    """Softmax attention in two steps: first a few agents attend to all tokens, then all queries attend to the agents.

    Paper: Han et al. 2023 (agent tokens, the two softmax attentions, the convolution of the values).
    Symbols: A → the means of queries, n (here m) → agents, V_A → the outputs of the agents.
    Differs: agents are means over consecutive valid tokens; the paper pools over squares of an image. The paper's biases by
        position within the image are left out. The convolution is left out by default. It runs over positions with one kernel per
        head; the paper's convolution runs over the image with one kernel per channel. Padded positions count as zeros. Everything
        is computed in float32 or more.
    """

    saturates = (("agents", "is at least the number of tokens ({n}), so each token is an agent and nothing is saved"),)

    def definition(self, query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs, computed example by example from the valid tokens. The tokens are cut into m consecutive parts, and
        the mean query of each part is an agent.
        """
        out, scale = [], query.shape[-1] ** -0.5
        for example, q in enumerate(query):
            real = slice(None) if key_valid is None or not key_valid[example].any() else key_valid[example]
            k, v = key[example, :, real], value[example, :, real]
            agents = means_of_parts(q[:, real], min(self.options.agents, k.shape[1]))
            out.append((q @ agents.mT * scale).softmax(dim=-1) @ (agents @ k.mT * scale).softmax(dim=-1) @ v)
        return torch.stack(out) + self._convolved(value)

    def mixed(self, softmax: Callable[..., Tensor], query: Queries, key: Keys, value: Keys, key_valid: KeyValid) -> Queries:
        """Return the outputs before the convolution: the agents attend to the tokens, then the queries attend to the agents.

        ``softmax`` is the function that computes softmax attention.
        """
        (agents,), few = landmarks(self.options.agents, key_valid, query)
        return softmax(query, agents, softmax(agents, key, value, key_valid), few)
