"""BigBird against transformers' block-sparse layer (extra ``peers``), with its weights and our random blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attn_zoo import MultiHeadAttention
from attn_zoo.attention.sparse.bigbird import BigBird, pattern

NAME = "transformers.models.big_bird.modeling_big_bird"
peer: Any = pytest.importorskip(NAME, reason="transformers is not installed (extra: peers)")

BLOCK, BLOCKS, DIM, HEADS, RANDOM = 4, 12, 16, 2, 2
N = BLOCK * BLOCKS


def build() -> tuple[Any, MultiHeadAttention]:
    """Return transformers' layer, and ours with its weights and the identity as output projection."""
    torch.manual_seed(0)
    config = peer.BigBirdConfig(
        hidden_size=DIM, num_attention_heads=HEADS, block_size=BLOCK, num_random_blocks=RANDOM, max_position_embeddings=N
    )
    theirs = peer.BigBirdBlockSparseAttention(config).double()
    ours = MultiHeadAttention(DIM, HEADS, "bigbird", length=N, block=BLOCK, random_blocks=RANDOM).double()
    with torch.no_grad():
        for name in ("query", "key", "value"):
            ours.projections.get_submodule(name).load_state_dict(getattr(theirs, name).state_dict())
        ours.out.weight.copy_(torch.eye(DIM))
        ours.out.bias.zero_()
    return theirs.eval(), ours.eval()


def masks(valid: torch.Tensor) -> dict[str, Any]:
    blocked, band, rows, columns = peer.BigBirdModel.create_masks_for_block_sparse_attn(valid.double(), BLOCK)
    names = {"from_blocked_mask": blocked, "to_blocked_mask": blocked}
    return {"band_mask": band, "from_mask": rows, "to_mask": columns, **names}


@pytest.mark.parametrize("padded", [0, 1, 3])
def test_equals_the_peer_with_its_weights_and_our_random_blocks(monkeypatch, padded):
    """Padding lies in the last block only; transformers weighs masked keys with exp(-10,000), which is zero."""
    theirs, ours = build()
    mechanism = ours.mechanism
    assert isinstance(mechanism, BigBird)
    plan = pattern(mechanism.geometry, mechanism.options)
    drawn = plan.draw(torch.arange(1, BLOCKS - 1), BLOCKS - 1, mechanism.seeds)
    assert (drawn >= 0).all()
    monkeypatch.setattr(theirs, "_bigbird_block_rand_mask_with_head", lambda **_: list(drawn.numpy()))
    monkeypatch.setattr(theirs, "_get_rand_attn_plan", lambda *_: ([N], [RANDOM]))
    valid = torch.arange(N) < torch.tensor([N, N - padded])[:, None]
    generator = torch.Generator()
    mine, other = (
        torch.randn(2, N, DIM, dtype=torch.float64, generator=generator.manual_seed(1)).requires_grad_() for _ in range(2)
    )
    out, expected = ours(mine, key_valid=valid if padded else None), theirs(other, **masks(valid))[0]
    torch.testing.assert_close(out[valid], expected[valid], rtol=0, atol=1e-12)
    weights = torch.randn(out.shape, dtype=torch.float64, generator=generator.manual_seed(2)) * valid[..., None]
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    assert mine.grad is not None and other.grad is not None
    torch.testing.assert_close(mine.grad, other.grad, rtol=0, atol=1e-12)
    own = ours.get_parameter("projections.key.weight").grad
    torch.testing.assert_close(own, theirs.key.weight.grad, rtol=0, atol=1e-11)


@torch.no_grad()
def test_in_evaluation_the_peer_takes_the_first_block_for_every_random_one():
    """Keys of the first block then count once as global keys and once more for each random block."""
    theirs, ours = build()
    tokens = torch.randn(1, N, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    query, key, value = (
        getattr(theirs, name)(tokens).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in ("query", "key", "value")
    )
    block = torch.arange(N) // BLOCK
    near = (block[:, None] - block).abs() <= 1
    ends = (block == 0) | (block == BLOCKS - 1)
    times = (near | ends | ends[:, None]).double()
    times[~ends] += RANDOM * (block == 0)
    scores = query @ key.mT * (DIM // HEADS) ** -0.5 + times.log()
    expected = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
    found = theirs(tokens, **masks(torch.ones(1, N)))[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert (found - ours(tokens)).abs().max() > 1e-3
