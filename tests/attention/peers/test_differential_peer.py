"""Differential attention against DiffLlama in transformers (extra ``peers``), in float64: outputs and gradients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attn_zoo import Geometry, build_attention

HEADS, D = 3, 16


class Double:
    """torch with float64 in place of float32, so that DiffLlama's casts lose no digits."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class Given(nn.Module):
    """Projection that returns given heads, whatever the tokens."""

    def __init__(self, heads: Tensor) -> None:
        super().__init__()
        self.heads = heads

    def forward(self, tokens: Tensor) -> Tensor:
        """Return first halves of all heads, then second halves: DiffLlama pairs head h with head h + H / 2."""
        return torch.cat(self.heads.chunk(2, dim=-1), dim=1).transpose(1, 2).flatten(2)


def diffllama(mechanism: Any, layer: int, mask: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    theirs: Any = pytest.importorskip("transformers.models.diffllama.modeling_diffllama")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(theirs, "torch", Double())
        config = SimpleNamespace(
            **{"hidden_size": HEADS * D, "num_attention_heads": 2 * HEADS, "num_key_value_heads": 2 * HEADS, "rms_norm_eps": 1e-5},
            **{"attention_dropout": 0.0, "attention_bias": False, "lambda_std_dev": 0.1, "_attn_implementation": "eager"},
        )
        built = theirs.DiffLlamaAttention(config, layer)
        built.q_proj, built.k_proj, built.v_proj, built.o_proj = Given(query), Given(key), Given(value), nn.Identity()
        for name, vector in zip(("q1", "k1", "q2", "k2"), mechanism.vectors.view(4, -1), strict=True):
            delattr(built, f"lambda_{name}")
            setattr(built, f"lambda_{name}", vector)
        unturned = query.new_ones(1, 1, D // 2), query.new_zeros(1, 1, D // 2)
        out, _ = built(query.new_zeros(len(query), query.shape[2], HEADS * D), unturned, mask)
    return out.unflatten(-1, (HEADS, D)).transpose(1, 2)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize(("n", "causal"), [(37, True), (130, True), (37, False)])
def test_equals_diffllama(n, causal, layer, padded):
    mechanism: Any = build_attention("differential", Geometry(HEADS, D, n, n, causal)).double()
    mechanism.join(layer, [mechanism] * 3)
    with torch.no_grad():
        mechanism.vectors.mul_(10)  # so that λ is far from its initial value
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, HEADS, n, D, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]
    valid = torch.ones(2, n, dtype=torch.bool)
    if padded:
        valid[0, 5:9] = valid[1, n - 7 :] = False
    hidden = ~valid[:, None, None] | (torch.ones(n, n, dtype=torch.bool).triu(1) if causal else torch.zeros(n, n, dtype=torch.bool))
    mask = torch.zeros(2, 1, n, n, dtype=torch.float64).masked_fill(hidden, float("-inf"))
    ours = mechanism(*inputs, key_valid=valid if padded else None)
    theirs = diffllama(mechanism, layer, mask, *inputs)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    weights = torch.randn(ours.shape, dtype=torch.float64, generator=generator)
    grads = [torch.autograd.grad((out * weights).sum(), [*inputs, mechanism.vectors]) for out in (ours, theirs)]
    for mine, other in zip(*grads, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)
