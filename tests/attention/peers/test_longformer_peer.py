"""Longformer against transformers' layer with its weights, and its window against local-attention (extra ``peers``)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attn_zoo import Geometry, MultiHeadAttention, build_attention

N, DIM, HEADS, REACH = 48, 32, 2, 4


def longformer_of_transformers() -> Any:
    name = "transformers.models.longformer.modeling_longformer"
    module = pytest.importorskip(name, reason="transformers is not installed (extra: peers)")
    config = module.LongformerConfig(
        hidden_size=DIM, num_attention_heads=HEADS, attention_window=[2 * REACH], attention_probs_dropout_prob=0.0
    )
    torch.manual_seed(0)
    return module.LongformerSelfAttention(config, layer_id=0).double()


def ours_with(theirs: Any, global_tokens: int) -> MultiHeadAttention:
    ours = MultiHeadAttention(DIM, HEADS, "longformer", length=N, window=2 * REACH + 1, global_tokens=global_tokens).double()
    with torch.no_grad():
        for name in ("query", "key", "value"):
            ours.projections.get_submodule(name).load_state_dict(getattr(theirs, name).state_dict())
            if global_tokens:
                own = ours.stream_projections.get_submodule(f"global_{name}")
                own.load_state_dict(getattr(theirs, f"{name}_global").state_dict())
        ours.out.weight.copy_(torch.eye(DIM))
        ours.out.bias.zero_()
    return ours


@pytest.mark.parametrize("global_tokens", [0, 1, 3])
@pytest.mark.parametrize("padded", [False, True])
def test_equals_transformers_with_its_weights(global_tokens, padded):
    """Transformers computes its softmax in float32 for any weights, and there rows without a valid key in reach have no gradient.

    Padding is therefore no longer than the reach of a window.
    """
    theirs = longformer_of_transformers()
    ours = ours_with(theirs, global_tokens)
    valid = torch.arange(N) < torch.tensor([N, N - REACH if padded else N])[:, None]
    mine, other = (
        torch.randn(2, N, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in "12"
    )
    is_global = (torch.arange(N) < global_tokens).expand(2, N)
    expected = theirs(
        other,
        attention_mask=torch.zeros(2, N).masked_fill(~valid, -10000.0).masked_fill(is_global, 10000.0),
        is_index_masked=~valid,
        is_index_global_attn=is_global,
        is_global_attn=global_tokens > 0,
    )[0]
    out = ours(mine, key_valid=valid if padded else None)
    torch.testing.assert_close(out[valid], expected[valid], rtol=0, atol=1e-6)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * valid[..., None]
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    assert mine.grad is not None and other.grad is not None
    torch.testing.assert_close(mine.grad, other.grad * valid[..., None], rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.get_parameter("projections.key.weight").grad, theirs.key.weight.grad, rtol=0, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("n", [N, 45])
def test_the_window_equals_local_attention(causal, padded, n):
    peer: Any = pytest.importorskip("local_attention", reason="local-attention is not installed (extra: peers)")
    theirs = peer.LocalAttention(REACH, causal=causal, exact_windowsize=True, autopad=True, use_rotary_pos_emb=False)
    window = REACH + 1 if causal else 2 * REACH + 1
    ours = build_attention("longformer", Geometry(HEADS, 8, n, n, causal), window=window, global_tokens=0)
    # local-attention needs a mask wherever it pads the sequence itself.
    valid = (torch.arange(n) < torch.tensor([n, n - 9 * padded])[:, None]) if padded or n % REACH else None

    def draw() -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        return [torch.randn(2, HEADS, n, 8, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)]

    mine, other = draw(), draw()
    out, expected = ours(*mine, key_valid=valid), theirs(*other, mask=valid)
    # After the last valid key, local-attention averages all keys in reach, so outputs at padded positions are left out.
    seen = torch.ones(2, 1, n, 1) if valid is None else valid[:, None, :, None]
    torch.testing.assert_close(out * seen, expected * seen, rtol=0, atol=1e-12)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * seen
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    for own, their in zip(mine, other, strict=True):
        torch.testing.assert_close(own.grad, their.grad, rtol=0, atol=1e-12)


@torch.no_grad()
def test_local_attention_sees_its_own_padding_without_a_mask():
    """``autopad`` fills the last window with zeros, which are keys like any other unless a mask is given."""
    peer: Any = pytest.importorskip("local_attention", reason="local-attention is not installed (extra: peers)")
    theirs = peer.LocalAttention(REACH, exact_windowsize=True, autopad=True, use_rotary_pos_emb=False)
    inputs = [torch.randn(1, 1, 45, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(at)) for at in range(3)]
    without, masked = theirs(*inputs), theirs(*inputs, mask=torch.ones(1, 45, dtype=torch.bool))
    assert (without - masked)[:, :, -1].abs().max() > 0.01
    ours = build_attention("longformer", Geometry(1, 8, 45, 45), window=2 * REACH + 1, global_tokens=0)
    torch.testing.assert_close(ours(*inputs), masked, rtol=0, atol=1e-12)
