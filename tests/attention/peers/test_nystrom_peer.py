"""Nyströmformer against nystrom-attention and transformers (extra ``peers``) with their weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attn_zoo import MultiHeadAttention

N, M, KERNEL = 48, 6, 5


def lucidrains(dim: int, heads: int, iterations: int) -> Any:
    peer: Any = pytest.importorskip("nystrom_attention", reason="nystrom-attention is not installed (extra: peers)")
    torch.manual_seed(0)
    return peer.NystromAttention(
        dim, dim_head=dim // heads, heads=heads, num_landmarks=M, pinv_iterations=iterations, residual_conv_kernel=KERNEL
    ).double()


def ours_with(
    dim: int, heads: int, iterations: int, weights: dict[str, Tensor], implementation: str = "eager"
) -> MultiHeadAttention:
    options: dict[str, Any] = {"landmarks": M, "iterations": iterations, "convolution": KERNEL}
    ours = MultiHeadAttention(dim, heads, "nystrom", length=N, implementation=implementation, **options).double()
    ours.load_state_dict(weights)
    return ours


def of_lucidrains(theirs: Any, dim: int) -> dict[str, Tensor]:
    held = {
        f"projections.{name}.weight": w for name, w in zip(("query", "key", "value"), theirs.to_qkv.weight.chunk(3), strict=True)
    }
    held |= {f"projections.{name}.bias": torch.zeros(dim) for name in ("query", "key", "value")}
    return {
        **held,
        "out.weight": theirs.to_out[0].weight,
        "out.bias": theirs.to_out[0].bias,
        "mechanism.kernel": theirs.res_conv.weight,
    }


def assert_equal(ours: nn.Module, theirs: nn.Module, shape: tuple[int, ...], atol: float) -> None:
    generator = torch.Generator()
    mine, other = (torch.randn(shape, dtype=torch.float64, generator=generator.manual_seed(1)).requires_grad_() for _ in range(2))
    out, expected = ours(mine), theirs(other)
    expected = expected[0] if isinstance(expected, tuple) else expected
    torch.testing.assert_close(out, expected, rtol=0, atol=atol)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=generator.manual_seed(2))
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=10 * atol)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("iterations", [1, 6])
def test_equals_the_peer_for_one_head_of_one_example(implementation, iterations):
    """The peer starts its pseudo-inverse from maxima over the batch and all heads, so this test has one example and one head."""
    theirs = lucidrains(8, 1, iterations)
    assert_equal(ours_with(8, 1, iterations, of_lucidrains(theirs, 8), implementation), theirs, (1, N, 8), 1e-9)


def test_equals_the_peer_for_all_heads_once_the_pseudo_inverse_is_found():
    theirs = lucidrains(16, 2, 40)
    assert_equal(ours_with(16, 2, 40, of_lucidrains(theirs, 16)), theirs, (3, N, 16), 1e-6)


def test_equals_transformers_for_one_head_of_one_example():
    name = "transformers.models.nystromformer.modeling_nystromformer"
    module: Any = pytest.importorskip(name, reason="transformers is not installed (extra: peers)")
    sizes = {"hidden_size": 8, "num_attention_heads": 1, "num_landmarks": M, "segment_means_seq_len": N}
    config = module.NystromformerConfig(**sizes, conv_kernel_size=KERNEL, attention_probs_dropout_prob=0.0)
    torch.manual_seed(0)
    theirs = module.NystromformerSelfAttention(config).double()
    held = {
        f"projections.{name}.{part}": getattr(getattr(theirs, name), part)
        for name in ("query", "key", "value")
        for part in ("weight", "bias")
    }
    held |= {"out.weight": torch.eye(8), "out.bias": torch.zeros(8), "mechanism.kernel": theirs.conv.weight}
    assert_equal(ours_with(8, 1, 6, held), theirs, (1, N, 8), 1e-9)


@torch.no_grad()
def test_the_rest_of_the_batch_reaches_the_peers_answer_and_not_ours():
    theirs = lucidrains(16, 2, 2)
    ours = ours_with(16, 2, 2, of_lucidrains(theirs, 16))
    tokens = torch.randn(4, N, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    tokens = tokens * torch.tensor([1.0, 2, 4, 8])[:, None, None]
    assert (theirs(tokens)[:1] - theirs(tokens[:1])).abs().max() > 1e-6
    torch.testing.assert_close(ours(tokens)[:1], ours(tokens[:1]), rtol=0, atol=1e-12)
