"""The layer's latent against multi-head latent attention of transformers' DeepSeek-V3, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from public_references import in_float64

from attn_zoo.layer import MultiHeadAttention

pytest.importorskip("transformers", reason="transformers is not installed (extra: peers)")
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek

DIM, HEADS, LATENT, ROTARY, N = 24, 3, 10, 2, 37
WIDTH = DIM // HEADS


def peer() -> Any:
    """Return DeepSeek-V3's attention in float64, whose rotary parts of queries and keys are zero."""
    sizes = {"hidden_size": DIM, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "kv_lora_rank": LATENT}
    sizes |= {"qk_nope_head_dim": WIDTH, "v_head_dim": WIDTH, "qk_rope_head_dim": ROTARY}
    config = deepseek.DeepseekV3Config(**sizes, q_lora_rank=None, num_hidden_layers=1, attn_implementation="sdpa")
    theirs = deepseek.DeepseekV3Attention(config, layer_idx=0)
    theirs.kv_a_layernorm = in_float64(
        "transformers", "models/deepseek_v3/modeling_deepseek_v3.py", ["DeepseekV3RMSNorm"]
    ).DeepseekV3RMSNorm(LATENT)
    theirs.scaling = WIDTH**-0.5
    with torch.no_grad():
        theirs.kv_a_layernorm.weight.normal_()
        theirs.q_proj.weight.unflatten(0, (HEADS, -1))[:, WIDTH:].zero_()
        theirs.kv_a_proj_with_mqa.weight[LATENT:].zero_()
    return theirs.double().eval()


def test_the_latent_is_that_of_deepseek_v3():
    torch.manual_seed(1)
    theirs = peer()
    ours = MultiHeadAttention(DIM, HEADS, length=N, causal=True, bias=False, latent_dim=LATENT).double()
    heads = theirs.kv_b_proj.weight.detach().unflatten(0, (HEADS, 2 * WIDTH))
    query = theirs.q_proj.weight.detach().unflatten(0, (HEADS, -1))[:, :WIDTH]
    weights = {"query": query, "key": heads[:, :WIDTH], "value": heads[:, WIDTH:]}
    named = {f"projections.{name}.weight": weight.flatten(0, 1) for name, weight in weights.items()}
    named |= {"latent.0.weight": theirs.kv_a_proj_with_mqa.weight[:LATENT], "latent.1.weight": theirs.kv_a_layernorm.weight}
    ours.load_state_dict(named | {"out.weight": theirs.o_proj.weight})
    mine, other = (torch.randn(2, N, DIM, dtype=torch.float64, requires_grad=True) for _ in range(2))
    other.data.copy_(mine.data)
    still = torch.ones(2, N, ROTARY, dtype=torch.float64), torch.zeros(2, N, ROTARY, dtype=torch.float64)
    out, (expected, _) = ours(mine), theirs(other, position_embeddings=still, attention_mask=None)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)
    for of in (out, expected):
        of.square().sum().backward()
    torch.testing.assert_close(mine.grad, other.grad, rtol=1e-9, atol=1e-9)
    assert ours.latent is not None
    down, norm = theirs.kv_a_proj_with_mqa.weight.grad[:LATENT], theirs.kv_a_layernorm.weight.grad
    torch.testing.assert_close([p.grad for p in ours.latent.parameters()], [down, norm], rtol=1e-9, atol=1e-9)
