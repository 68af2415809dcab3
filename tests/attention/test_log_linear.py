"""Log-linear attention: parts of the past, equal weights as in SSD."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attn_zoo import Geometry, build_attention
from attn_zoo.attention.linear.log_linear import _parts

HEADS, D = 2, 12


def build(name: str, n: int, **options: Any) -> Any:
    return build_attention(name, Geometry(HEADS, D, n, n, causal=True), **options).double()


def draw(n: int) -> list[Tensor]:
    """Return queries, keys, values, step sizes and weights of the parts."""
    return [torch.randn(2, HEADS, n, width, dtype=torch.float64) for width in (D, D, D, 1, D)]


def test_parts_double_with_the_distance():
    """Token 6 sees parts of 4 and 2 tokens and itself; token 7 sees parts of 4, 2 and 1 tokens and itself."""
    parts = _parts(torch.arange(8), D)
    assert parts[6, :7].tolist() == [3, 3, 3, 3, 2, 2, 0]
    assert parts[7].tolist() == [3, 3, 3, 3, 2, 2, 1, 0]


@pytest.mark.parametrize("n", [1, 33, 70, 200])
def test_equal_weights_of_all_parts_give_state_space_duality(n):
    ours, plain = build("log_linear", n), build("ssd", n)
    ours.load_state_dict(plain.state_dict())
    query, key, value, step, level = draw(n)
    out = ours(query, key, value, streams={"step": step, "level": torch.zeros_like(level)})
    torch.testing.assert_close(out, plain(query, key, value, streams={"step": step}), rtol=1e-10, atol=1e-10)
