"""Our layer against lucidrains' ``linformer`` (extra ``peers``) with its weights: the one maintained public Linformer."""

from __future__ import annotations

import pytest
import torch

from attn_zoo import MultiHeadAttention
from attn_zoo.attention.low_rank.linformer import Linformer

peer = pytest.importorskip("linformer", reason="the extra `peers` is not installed")


def pair(*, k: int, share_kv: bool, one_kv_head: bool, n: int = 512, dim: int = 64, heads: int = 4):
    """Return the peer, and our layer with its weights; heads that share keys and values become copies of one head."""
    torch.manual_seed(0)
    theirs = peer.LinformerSelfAttention(dim=dim, seq_len=n, k=k, heads=heads, share_kv=share_kv, one_kv_head=one_kv_head)
    ours = MultiHeadAttention(
        dim, heads, "linformer", length=n, projected_length=k, sharing="key_value" if share_kv else "headwise"
    )
    with torch.no_grad():
        copies = heads if one_kv_head else 1
        of_value = theirs.to_k if share_kv else theirs.to_v
        ours.get_parameter("projections.query.weight").copy_(theirs.to_q.weight)
        ours.get_parameter("projections.key.weight").copy_(theirs.to_k.weight.repeat(copies, 1))
        ours.get_parameter("projections.value.weight").copy_(of_value.weight.repeat(copies, 1))
        ours.out.load_state_dict(theirs.to_out.state_dict())
        mechanism = ours.mechanism
        assert isinstance(mechanism, Linformer)
        weight = mechanism.maps[0].get_parameter("weight")
        weight[0, 0] = theirs.proj_k.T
        weight[-1, 0] = (theirs.proj_k if share_kv else theirs.proj_v).T
    return theirs.eval(), ours.eval()


@pytest.mark.parametrize("k", [128, 256])
@pytest.mark.parametrize("one_kv_head", [False, True])
@pytest.mark.parametrize("share_kv", [False, True])
@pytest.mark.parametrize("keys", [512, 300])
def test_equals_the_peer_with_its_weights(k, one_kv_head, share_kv, keys):
    theirs, ours = pair(k=k, share_kv=share_kv, one_kv_head=one_kv_head)
    mine, other = (torch.randn(2, keys, 64, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    out, expected = ours(mine), theirs(other)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
    out.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)
