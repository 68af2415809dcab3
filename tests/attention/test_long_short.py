"""Long-short against window, dynamic projection and joint softmax written out position by position in float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from written_out import HEAD_DIM, HEADS, builder, draw, require_same_in

from attn_zoo.attention.low_rank.long_short import LongShort

build = builder(LongShort, moved=0.1)


def written_out(built: LongShort, query: Tensor, key: Tensor, value: Tensor, valid: Tensor) -> Tensor:
    """Attention of one query at a time over the dynamically projected keys and the keys of its window."""
    o, out = built.options, torch.zeros_like(query)

    def norm(x: Tensor, which: int, head: int) -> Tensor:
        if not o.norms:
            return x
        centred = x - x.mean(-1, keepdim=True)
        even = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return even * built.gain[which, head] + built.shift[which, head]

    rows = []
    for b in range(query.shape[0]):
        keep = valid[b].nonzero()[:, 0]
        for h in range(HEADS):
            k, v = key[b, h, keep], value[b, h, keep]
            shares = (k @ built.projection[h].T).softmax(dim=0)  # over positions, one column for each projected key
            far_key, far_value = norm(shares.T @ k, 1, h), norm(shares.T @ v, 1, h)
            near_key, near_value = norm(k, 0, h), norm(v, 0, h)
            for i in range(query.shape[2]):
                near = (keep - i).abs() <= o.window // 2
                keys = torch.cat([far_key, near_key[near]])
                weights = (keys @ query[b, h, i] / HEAD_DIM**0.5).softmax(-1)
                rows.append(weights @ torch.cat([far_value, near_value[near]]) if len(keep) else out[b, h, i])
    return torch.stack(rows).view_as(query)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("window", "rank", "norms"), [(5, 3, True), (1, 1, False), (33, 4, True), (7, 20, False)])
def test_equals_the_paper(padded, window, rank, norms):
    for n in (1, 2, 19, 40):
        built, inputs = build(n, window=window, rank=rank, norms=norms), draw(n)
        valid = torch.ones(3, n, dtype=torch.bool)
        if padded:
            valid[1, n // 2 :], valid[2, ::3] = False, False
        call, expected = partial(built, *inputs, key_valid=valid if padded else None), written_out(built, *inputs, valid)
        require_same_in(["definition", "tiled"], built, call, expected, [*inputs, *built.parameters()], atol=1e-11)
