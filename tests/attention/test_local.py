"""Local attention against a dense mask over all pairs in float64."""

from __future__ import annotations

import pytest
from dense_mask import HEAD_DIM, HEADS, assert_sees

from attn_zoo import Geometry, build_attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("block", "neighbours"), [(1, 0), (4, 0), (7, 1), (4, 2), (3, 30), (100, 0)])
def test_a_block_sees_itself_and_its_neighbours(causal, block, neighbours):
    for n in (1, 8, 45):
        geometry, options = Geometry(HEADS, HEAD_DIM, n, n, causal), {"block": block, "neighbours": neighbours}
        built = build_attention("local", geometry, implementation="definition", **options).double()
        assert_sees(built, n, lambda _, i, j: abs(i // block - j // block) <= neighbours)
