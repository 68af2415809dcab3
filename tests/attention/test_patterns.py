"""Local attention and both patterns of Sparse Transformers against a dense mask over all pairs in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from dense_mask import HEAD_DIM, HEADS, assert_sees

from attn_zoo import Geometry, build_attention
from attn_zoo.kernels.cpu import block_sparse as gathered
from attn_zoo.kernels.cpu import strided as grid

Sees = Callable[[int, int, int], bool]


def local(n: int, block: int, neighbours: int) -> Sees:
    return lambda _, i, j: abs(i // block - j // block) <= neighbours


def fixed(n: int, stride: int = 0, summary: int = 1) -> Sees:
    """See the block of the query, and the last places of every block."""
    block = stride or math.ceil(math.sqrt(n))
    return lambda _, i, j: i // block == j // block or j % block >= block - min(summary, block)


def strided(n: int, stride: int = 0) -> Sees:
    """See what is at most a stride away from the query, or a multiple of it."""
    apart = stride or math.ceil(math.sqrt(n))
    return lambda _, i, j: abs(i - j) <= apart or (i - j) % apart == 0


CASES = [
    *((local, {"block": b, "neighbours": k}) for b, k in ((1, 0), (4, 0), (7, 1), (4, 2), (3, 30), (100, 0))),
    *((fixed, {"stride": s, "summary": k}) for s, k in ((0, 1), (0, 3), (0, 0), (1, 1), (5, 2), (8, 8), (60, 2))),
    *((strided, {"stride": s}) for s in (0, 1, 3, 8, 60)),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("sees", "options"), [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}") for case in CASES])
def test_a_query_sees_its_pattern(sees, options, causal, monkeypatch):
    for kernels in (gathered, grid):
        monkeypatch.setattr(kernels, "TILE", 100)
    for n in (1, 8, 9, 45):
        geometry = Geometry(HEADS, HEAD_DIM, n, n, causal)
        built = build_attention(sees.__name__, geometry, **options).double()
        assert_sees(built, n, sees(n, **options))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sees", [fixed, strided])
def test_other_lengths_keep_the_stride_it_was_built_for(sees, causal):
    built = build_attention(sees.__name__, Geometry(HEADS, HEAD_DIM, 100, 100, causal)).double()
    assert_sees(built, 37, sees(100))
