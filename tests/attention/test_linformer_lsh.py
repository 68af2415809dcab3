"""Linformer with LSH against buckets, their order and both kinds of keys written out position by position in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from written_out import builder, projected, require_same_in, several, shown

from attn_zoo import MultiHeadAttention, join_layers
from attn_zoo.attention.low_rank.linformer_lsh import LinformerLSH, bucket_count

HEADS, HEAD_DIM = 2, 8


build = builder(LinformerLSH)


def bucket_of(x: Tensor, rotations: Tensor, buckets: int) -> int:
    """Return the bucket of x in digits of base 16, the last smaller: each the nearest of drawn directions and their opposites."""
    code, at = 0, 0
    while buckets > 1:
        digit = min(16, buckets)
        along = [(x.detach() @ rotations[:, c]).item() for c in range(at, at + digit // 2)]
        both = along + [-a for a in along]
        code, at, buckets = code * digit + both.index(max(both)), at + digit // 2, buckets // digit
    return code


def written_out(built: LinformerLSH, query: Tensor, value: Tensor, valid: Tensor) -> Tensor:
    """Attention of one query at a time over the projected keys of all valid tokens and the keys near it in bucket order."""
    map_of = {head: (map_, at) for map_ in built.maps for at, head in enumerate(map_.heads)}
    buckets, rows = bucket_count(built.geometry.keys, built.options), []
    for b in range(query.shape[0]):
        keep = valid[b].nonzero()[:, 0]
        for h in range(HEADS):
            key, (map_, copy) = query[b, h] / query[b, h].norm(dim=-1, keepdim=True), map_of[h]
            far_key, far_value = (projected(map_, t, role, copy, keep) for role, t in enumerate((key, value[b, h])))
            order = sorted(keep.tolist(), key=lambda i: (bucket_of(query[b, h, i], built.rotations[h, 0], buckets), i))
            for i in range(query.shape[2]):
                if i not in order:
                    rows.append(query[b, h, i] * 0)
                    continue
                rank, reach = order.index(i), built.options.window // 2
                near = order[max(0, rank - reach) : rank + reach + 1]
                weights = (torch.cat([far_key, key[near]]) @ query[b, h, i] / HEAD_DIM**0.5).softmax(-1)
                rows.append(weights @ torch.cat([far_value, value[b, h, near]]))
    return torch.stack(rows).view_as(query)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"projected_length": 3, "window": 5},
        {"projected_length": 4, "sharing": "none", "window": 1, "buckets": 2},
        {"sharing": "none", "projected_lengths": "5+2", "window": 3, "buckets": 64},
        {"projected_length": 3, "projection": "mean", "window": 51},
        {"projected_length": 3, "sharing": "key_value", "projection": "convolution", "window": 7, "buckets": 1},
    ],
)
def test_equals_the_equation(padded, options):
    n = 23
    built, (query, value), valid = build(n, **options), several(2, n), shown(n, padded)

    def call() -> Tensor:
        return built(query, query, value, key_valid=valid if padded else None).masked_fill(~valid[:, None, :, None], 0)

    expected, leaves = written_out(built, query, value, valid), [query, value, *built.parameters()]
    require_same_in(["definition", "tiled"], built, call, expected, leaves, atol=1e-11)


def test_layers_that_share_a_projection_hash_by_themselves():
    torch.manual_seed(0)
    stack = [MultiHeadAttention(16, 2, "linformer_lsh", length=20, window=3, sharing="layerwise") for _ in range(2)]
    join_layers(torch.nn.Sequential(*stack))
    first, second = (layer.mechanism for layer in stack)
    assert isinstance(first, LinformerLSH)
    assert isinstance(second, LinformerLSH)
    assert second.maps[0] is first.maps[0]
    assert not torch.equal(first.rotations, second.rotations)
    assert stack[1].order.value == "project_first"
    assert stack[1](stack[0](torch.randn(2, 20, 16))).shape == (2, 20, 16)


def test_buckets_follow_the_length_unless_asked():
    built = build(64, window=9)
    assert bucket_count(64, built.options) == 16
    built.resize_length(256)
    assert bucket_count(built.geometry.keys, built.options) == 64
    query, value = several(2, 256)
    assert built(query, None, value).isfinite().all()
    assert bucket_count(256, LinformerLSH.card.options(projected_length=2, window=9, buckets=4)) == 4
