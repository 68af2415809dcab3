"""Softmax attention with an output gate against the attention of transformers' Qwen3-Next (extra ``peers``)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from attn_zoo.layer import MultiHeadAttention

qwen = pytest.importorskip(
    "transformers.models.qwen3_next.modeling_qwen3_next", reason="transformers is not installed (extra: peers)"
)

N, DIM, HEADS = 37, 24, 4


def peer() -> Any:
    """Return Qwen3-Next's attention in float64, without its norms of queries and keys."""
    sizes = {"hidden_size": DIM, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": DIM // HEADS}
    config = qwen.Qwen3NextConfig(**sizes, num_hidden_layers=1, attn_implementation="sdpa")  # eager casts to float32
    theirs = qwen.Qwen3NextAttention(config, layer_idx=0).double().eval()
    theirs.q_norm = theirs.k_norm = nn.Identity()
    return theirs


def test_the_elementwise_gate_is_that_of_qwen3_next():
    """Their query projection also makes the gate; rotary positions are turned off by angles of 0."""
    torch.manual_seed(1)
    theirs = peer()
    ours = MultiHeadAttention(DIM, HEADS, length=N, causal=True, bias=False, output_gate="elementwise").double()
    query, gate = theirs.q_proj.weight.detach().unflatten(0, (HEADS, 2, DIM // HEADS)).unbind(1)
    weights = {"query": query.flatten(0, 1), "key": theirs.k_proj.weight, "value": theirs.v_proj.weight}
    named = {f"projections.{name}.weight": weight for name, weight in weights.items()}
    ours.load_state_dict(named | {"gate.weight": gate.flatten(0, 1), "out.weight": theirs.o_proj.weight})
    mine, other = (torch.randn(2, N, DIM, dtype=torch.float64, requires_grad=True) for _ in range(2))
    other.data.copy_(mine.data)
    still = torch.ones(2, N, DIM // HEADS, dtype=torch.float64), torch.zeros(2, N, DIM // HEADS, dtype=torch.float64)
    out, (expected, _) = ours(mine), theirs(other, position_embeddings=still, attention_mask=None)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)
    for of in (out, expected):
        of.square().sum().backward()
    torch.testing.assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-9)
    assert ours.gate is not None
    theirs_gate = theirs.q_proj.weight.grad.unflatten(0, (HEADS, 2, DIM // HEADS)).unbind(1)[1].flatten(0, 1)
    torch.testing.assert_close(ours.gate.weight.grad, theirs_gate, rtol=1e-9, atol=1e-9)
