"""Local attention against a dense mask over all pairs in float64."""

from __future__ import annotations

import pytest
from dense_mask import HEAD_DIM, HEADS, assert_sees

from attn_zoo import Geometry, build_attention
from attn_zoo.attention.sparse.local import Local, Options


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("block", "neighbours"), [(1, 0), (4, 0), (7, 1), (4, 2), (3, 30), (100, 0)])
def test_a_block_sees_itself_and_its_neighbours(causal, block, neighbours):
    for n in (1, 8, 45):
        geometry, options = Geometry(HEADS, HEAD_DIM, n, n, causal), {"block": block, "neighbours": neighbours}
        built = build_attention("local", geometry, implementation="definition", **options).double()
        assert_sees(built, n, lambda _, i, j: abs(i // block - j // block) <= neighbours)


def test_cost_is_that_of_the_blocks():
    n, block = 4096, 64
    for causal, neighbours, width in ((False, 0, 1), (False, 2, 5), (True, 2, 3)):
        geometry = Geometry(4, 64, n, n, causal)
        flops = Local.card.cost(geometry, Options(block=block, neighbours=neighbours)).flops
        assert flops == 4 * n * width * block * geometry.inner_dim
