"""The fixed pattern of Sparse Transformers against a dense mask over all pairs in float64."""

from __future__ import annotations

import math
from functools import partial

import pytest
from dense_mask import HEAD_DIM, HEADS, IMPLEMENTATIONS, assert_sees

from attn_zoo import Geometry, build_attention
from attn_zoo.kernels.cpu import block_sparse as gathered


def sees(block: int, last: int, head: int, i: int, j: int) -> bool:
    """Return True if key j is in the block of query i, or at place ``last`` or later of any block."""
    return i // block == j // block or j % block >= last


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("stride", "summary"), [(0, 1), (0, 3), (0, 0), (1, 1), (5, 2), (8, 8), (60, 2)])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_sees_its_block_and_the_summaries(causal, stride, summary, implementation, monkeypatch):
    monkeypatch.setattr(gathered, "TILE", 100)
    for n in (1, 9, 45):
        geometry, options = Geometry(HEADS, HEAD_DIM, n, n, causal), {"stride": stride, "summary": summary}
        built = build_attention("fixed", geometry, implementation=implementation, **options).double()
        block = stride or math.ceil(math.sqrt(n))
        last = block - min(summary, block)
        assert_sees(built, n, partial(sees, block, last))


@pytest.mark.parametrize("causal", [False, True])
def test_other_lengths_keep_the_block_it_was_built_for(causal):
    built = build_attention("fixed", Geometry(HEADS, HEAD_DIM, 100, 100, causal)).double()
    assert_sees(built, 37, partial(sees, 10, 9))
