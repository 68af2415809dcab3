"""The strided pattern of Sparse Transformers against a dense mask over all pairs in float64."""

from __future__ import annotations

import math
from functools import partial

import pytest
from dense_mask import HEAD_DIM, HEADS, IMPLEMENTATIONS, assert_sees

from attn_zoo import Geometry, build_attention
from attn_zoo.kernels.cpu import strided as grid


def sees(apart: int, head: int, i: int, j: int) -> bool:
    """Return True if key j is at most ``apart`` away from query i, or a multiple of it."""
    return abs(i - j) <= apart or (i - j) % apart == 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("stride", [0, 1, 3, 8, 60])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_sees_its_window_and_every_lth_position(causal, stride, implementation, monkeypatch):
    monkeypatch.setattr(grid, "TILE", 100)
    for n in (1, 9, 45):
        geometry = Geometry(HEADS, HEAD_DIM, n, n, causal)
        built = build_attention("strided", geometry, implementation=implementation, stride=stride).double()
        apart = stride or math.ceil(math.sqrt(n))
        assert_sees(built, n, partial(sees, apart))


@pytest.mark.parametrize("causal", [False, True])
def test_other_lengths_keep_the_stride_it_was_built_for(causal):
    built = build_attention("strided", Geometry(HEADS, HEAD_DIM, 100, 100, causal)).double()
    assert_sees(built, 37, partial(sees, 10))
