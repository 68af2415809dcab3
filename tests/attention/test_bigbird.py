"""BigBird against a dense mask over all pairs in float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from dense_mask import HEAD_DIM, HEADS, assert_sees

from attn_zoo import Geometry, build_attention
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
def test_equals_attention_over_its_blocks(options, monkeypatch):
    monkeypatch.setattr(gathered, "TILE", 300)
    torch.manual_seed(0)
    for n in (1, 9, 45):
        built = build_attention("bigbird", Geometry(HEADS, HEAD_DIM, n, n), **options).double()
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
