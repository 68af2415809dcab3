"""Linformer with a window against both kinds of keys written out position by position in float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from written_out import HEAD_DIM, HEADS, builder, draw, projected, require_same_in, shown

from attn_zoo import MultiHeadAttention
from attn_zoo.attention.low_rank.linformer_window import LinformerWindow

build = builder(LinformerWindow)


def written_out(built: LinformerWindow, query: Tensor, key: Tensor, value: Tensor, valid: Tensor) -> Tensor:
    """Attention of one query at a time over the projected keys of all valid tokens and the keys of its window."""
    map_of = {head: (map_, at) for map_ in built.maps for at, head in enumerate(map_.heads)}
    rows = []
    for b in range(query.shape[0]):
        keep = valid[b].nonzero()[:, 0]
        for h in range(HEADS):
            map_, copy = map_of[h]
            far_key, far_value = (projected(map_, t[b, h], role, copy, keep) for role, t in enumerate((key, value)))
            for i in range(query.shape[2]):
                near = keep[(keep - i).abs() <= built.options.window // 2]
                keys = torch.cat([far_key, key[b, h, near]])
                weights = (keys @ query[b, h, i] / HEAD_DIM**0.5).softmax(-1)
                rows.append(weights @ torch.cat([far_value, value[b, h, near]]))
    return torch.stack(rows).view_as(query)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("window", [1, 5, 51])
@pytest.mark.parametrize(
    "options",
    [
        {"projected_length": 3},
        {"projected_length": 4, "sharing": "none"},
        {"sharing": "none", "projected_lengths": "5+2"},
        {"projected_length": 3, "projection": "mean"},
        {"projected_length": 3, "sharing": "key_value", "projection": "convolution"},
    ],
)
def test_equals_the_equation(padded, window, options):
    n = 23
    built, inputs, valid = build(n, window=window, **options), draw(n), shown(n, padded)
    call, expected = partial(built, *inputs, key_valid=valid if padded else None), written_out(built, *inputs, valid)
    require_same_in(["definition", "tiled"], built, call, expected, [*inputs, *built.parameters()], atol=1e-11)


def test_the_layer_projects_first():
    layer = MultiHeadAttention(16, 2, "linformer_window", length=20, window=3, projected_length=2)
    assert layer.order.value == "project_first"
    assert layer(torch.randn(2, 20, 16)).shape == (2, 20, 16)
