"""Block-sparse attention: the blocks of its layout, and attention over them against a dense mask over all pairs in float64."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
import torch
from dense_mask import HEAD_DIM, HEADS, assert_sees

from attn_zoo import Geometry, build_attention
from attn_zoo.attention.sparse._block_masks import Pattern
from attn_zoo.attention.sparse.block_sparse import pattern
from attn_zoo.kernels.cpu import block_sparse as gathered


def seen_blocks(layout: Pattern, n: int, seeds: torch.Tensor) -> list[dict[int, list[int]]]:
    """Return, for each head, the blocks of keys that each block of queries sees."""
    found: list[dict[int, list[int]]] = [{} for _ in seeds]
    for table in layout.tables(n, seeds):
        for head in range(len(seeds)):
            for row, keys in zip(table.queries.tolist(), table.keys.expand(len(seeds), -1, -1)[head].tolist(), strict=True):
                assert row not in found[head]
                found[head][row] = [block for block in keys if block >= 0]
    return found


def sees(layout: list[dict[int, list[int]]], block: int, head: int, i: int, j: int) -> bool:
    """Return True if the block of query i sees the block of key j."""
    return j // block in layout[head][i // block]


LAYOUTS = [
    Pattern(4, 1, first=1, random=1),
    Pattern(4, 0, random=3),
    Pattern(4, 2, first=2, last=1, random=2),
    Pattern(4, 1, first=1, last=1, random=50),
    Pattern(4, 50, random=1),
    Pattern(4, 1, first=1, random=2, causal=True),
    Pattern(4, 0, random=4, causal=True),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("n", [1, 10, 45, 150])
def test_layout_holds_window_globals_and_as_many_drawn_blocks_as_there_are(layout, n):
    blocks = -(-n // layout.block)
    for heads in seen_blocks(layout, n, torch.arange(5)):
        assert sorted(heads) == list(range(blocks))
        for row, keys in heads.items():
            past = range(row + 1) if layout.causal else range(blocks)
            ends = {j for j in range(blocks) if j < layout.first or j >= blocks - layout.last}
            always = {j for j in past if abs(j - row) <= layout.window or j in ends or row in ends}
            assert len(set(keys)) == len(keys), "a block would count twice"
            visible = set(keys) & set(past)
            assert always <= visible
            others = set(past) - always
            assert len(visible) == len(always) + min(layout.random, len(others))


def test_draws_are_uniform_and_differ_by_head_and_row():
    layout, seeds = Pattern(1, 1, first=1, last=1, random=2), torch.arange(4000)
    drawn = layout.draw(torch.arange(1, 11), 11, seeds)
    counts = Counter(drawn[:, 4].flatten().tolist())  # block 5 of 12 draws from all blocks but 0, 4, 5, 6 and 11
    assert sorted(counts) == [1, 2, 3, 7, 8, 9, 10]
    expected = 8000 / 7
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 22.5  # chi-square, 6 degrees, p = 0.001
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[:, 4], drawn[:, 5])


def test_causal_draws_do_not_depend_on_the_length():
    layout = Pattern(4, 1, first=1, random=2, causal=True)
    short, long = (seen_blocks(layout, n, torch.arange(3)) for n in (60, 400))
    for head in range(3):
        for row, keys in short[head].items():
            assert {j for j in keys if j <= row} == {j for j in long[head][row] if j <= row}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"block": 4, "local_blocks": 0, "global_blocks": 0, "random_blocks": 3},
        {"block": 3, "local_blocks": 2, "global_blocks": 2, "random_blocks": 2, "seed": 5},
        {"block": 5, "local_blocks": 0, "global_blocks": 1, "random_blocks": 0},
        {"block": 60},
    ],
    ids=str,
)
def test_equals_attention_over_the_layout(causal, options, monkeypatch):
    monkeypatch.setattr(gathered, "TILE", 500)
    for n in (1, 9, 45):
        geometry = Geometry(HEADS, HEAD_DIM, n, n, causal)
        built = build_attention("block_sparse", geometry, **options).double()
        chosen = built.options
        layout = seen_blocks(pattern(geometry, chosen), n, torch.arange(HEADS) + HEADS * chosen.seed)
        assert_sees(built, n, partial(sees, layout, chosen.block))


def test_the_seed_is_an_option_and_draws_nothing_else():
    geometry, inputs = Geometry(2, 8, 200, 200), torch.randn(3, 1, 2, 200, 8)
    first, same, other = (build_attention("block_sparse", geometry, seed=seed)(*inputs) for seed in (1, 1, 2))
    assert torch.equal(first, same) and not torch.equal(first, other)
