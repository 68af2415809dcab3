"""Top-k attention against sorted scores written out in float64, and the memory it takes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from written_out import HEAD_DIM, HEADS, builder, draw, require_same_in, shown

from attn_zoo.attention.dense.topk import TopK
from attn_zoo.count.counter import kept_bytes
from attn_zoo.kernels.cpu import _tiling

build = builder(TopK)


def written_out(built: TopK, query: Tensor, key: Tensor, value: Tensor, valid: Tensor) -> Tensor:
    """Softmax attention of one query at a time over the k highest-scored keys that it may see."""
    rows = []
    for b in range(query.shape[0]):
        for h in range(HEADS):
            for i in range(query.shape[2]):
                seen = [j for j in range(key.shape[2]) if valid[b, j] and (j <= i or not built.geometry.causal)]
                scores = {j: (query[b, h, i] @ key[b, h, j]).item() for j in seen}
                best = sorted(seen, key=lambda j: -scores[j])[: built.options.kept]
                weights = (key[b, h, best] @ query[b, h, i] / HEAD_DIM**0.5).softmax(-1)
                rows.append(weights @ value[b, h, best])
    return torch.stack(rows).view_as(query)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kept", [1, 4, 50])
def test_equals_sorted_scores(causal, padded, kept, monkeypatch):
    monkeypatch.setattr(_tiling, "BLOCK", 60)
    for queries, keys in [(1, 1), (17, 17)] + ([] if causal else [(5, 17)]):
        built, inputs = build(keys, queries=queries, causal=causal, kept=kept), draw(queries, keys=keys)
        valid = shown(keys, padded)
        call, expected = partial(built, *inputs, key_valid=valid if padded else None), written_out(built, *inputs, valid)
        require_same_in(["definition", "tiled"], built, call, expected, inputs)


def test_what_tiles_keep_grows_with_k_and_not_with_the_square_of_the_length():
    sizes = []
    for n in (256, 512):
        built = build(n, kept=4, implementation="tiled").float()
        inputs = [t.detach().float().requires_grad_() for t in draw(n, batch=1)]
        sizes.append(kept_bytes(partial(built, *inputs), inputs)[1])
    assert sizes == [12 * 4 * HEADS * 256, 12 * 4 * HEADS * 512]
