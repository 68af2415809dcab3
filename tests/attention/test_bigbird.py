"""BigBird against a dense mask over all pairs in float64, and against transformers' layer with its weights and draws."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from dense_mask import HEAD_DIM, HEADS, IMPLEMENTATIONS, assert_sees
from torch import Tensor, nn

from attn_zoo import Geometry, MultiHeadAttention, build_attention
from attn_zoo.attention.sparse._block_masks import Pattern
from attn_zoo.attention.sparse.bigbird import BigBird, pattern
from attn_zoo.kernels.cpu import block_sparse as gathered


def layout(built: BigBird, n: int) -> list[set[tuple[int, int]]]:
    """Return, for each head, the pairs (query block, key block) that are compared."""
    pairs: list[set[tuple[int, int]]] = [set() for _ in range(HEADS)]
    for table in pattern(built.geometry, built.options).tables(n, built.seeds):
        for head, keys in enumerate(table.keys.expand(HEADS, -1, -1).tolist()):
            pairs[head] |= {(i, j) for i, row in zip(table.queries.tolist(), keys, strict=True) for j in row if j >= 0}
    return pairs


def compared(pairs: list[set[tuple[int, int]]], block: int, head: int, i: int, j: int) -> bool:
    """Return True if a head compares the blocks of positions i and j."""
    return (i // block, j // block) in pairs[head]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block": 3, "random_blocks": 3},
        {"block": 8, "window_blocks": 1, "global_blocks": 0, "random_blocks": 2},
        {"block": 2, "window_blocks": 5, "global_blocks": 4, "random_blocks": 0},
        {"block": 60},
    ],
    ids=str,
)
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_equals_attention_over_its_blocks(options, implementation, monkeypatch):
    monkeypatch.setattr(gathered, "TILE", 300)
    torch.manual_seed(0)
    for n in (1, 9, 45):
        built = build_attention("bigbird", Geometry(HEADS, HEAD_DIM, n, n), implementation=implementation, **options).double()
        assert isinstance(built, BigBird)
        pairs, b = layout(built, n), built.options.block
        assert_sees(built, n, partial(compared, pairs, b))


def test_every_block_sees_window_globals_and_its_draws():
    torch.manual_seed(0)
    built = build_attention("bigbird", Geometry(HEADS, HEAD_DIM, 800, 800), block=8, random_blocks=3)
    assert isinstance(built, BigBird)
    for pairs in layout(built, 800):
        for i in range(1, 99):
            near = set(range(i - 1, i + 2))
            seen = {j for row, j in pairs if row == i}
            assert near | {0, 99} <= seen and len(seen) == len(near | {0, 99}) + 3
        assert {j for i, j in pairs if i == 0} == {j for i, j in pairs if i == 99} == set(range(100))


@pytest.mark.peers
@pytest.mark.parametrize("padded", [False, True])
def test_equals_transformers_with_its_weights_and_draws(padded, monkeypatch):
    """Transformers runs in training mode, because in eval mode it draws block 0 each time and counts it again."""
    peer = pytest.importorskip("transformers.models.big_bird.modeling_big_bird", reason="transformers is not installed")
    from transformers import BigBirdConfig

    n, dim, heads, block, drawn = 96, 32, 4, 4, 3
    config = BigBirdConfig(
        hidden_size=dim, num_attention_heads=heads, block_size=block, num_random_blocks=drawn, attention_probs_dropout_prob=0.0,
        max_position_embeddings=n,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = peer.BigBirdBlockSparseAttention(config, seed=3).double().train()
    ours = MultiHeadAttention(dim, heads, "bigbird", length=n, block=block, random_blocks=drawn).double()
    ours.add_module("out", nn.Identity())  # transformers' layer has no output projection
    for name in ("query", "key", "value"):
        ours.projections.get_submodule(name).load_state_dict(getattr(theirs, name).state_dict())

    seen: list[Tensor] = []
    masks_of_draws = theirs._create_rand_mask_from_inputs

    def spy(from_blocked: Tensor, to_blocked: Tensor, draws: Tensor, *rest: int) -> Tensor:
        seen.append(draws[0])
        found: Tensor = masks_of_draws(from_blocked, to_blocked, draws, *rest)
        return found

    monkeypatch.setattr(theirs, "_create_rand_mask_from_inputs", spy)
    tokens = torch.randn(2, n, dim, dtype=torch.float64)
    valid = torch.ones(2, n, dtype=torch.bool)
    valid[1, n - 13 :] = not padded
    masks = peer.BigBirdModel.create_masks_for_block_sparse_attn(valid.double(), block)
    names = ("from_blocked_mask", "band_mask", "from_mask", "to_mask")
    named = dict(zip(names, masks, strict=True))
    expected = theirs(tokens, to_blocked_mask=named["from_blocked_mask"], **named)[0]
    monkeypatch.setattr(Pattern, "draw", lambda *_: seen[0])
    got = ours(tokens, key_valid=valid)
    torch.testing.assert_close(got[valid], expected.reshape(got.shape)[valid], rtol=0, atol=1e-12)
