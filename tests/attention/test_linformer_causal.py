"""Block-causal Linformer against its definition, query by query in float64."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor
from written_out import builder, draw

from attn_zoo.attention.low_rank.linformer_causal import LinformerCausal, Options, block_size

build = builder(LinformerCausal, projected_length=2)


def mixed(weights: Tensor, tokens: list[Tensor]) -> Tensor:
    """Return the weighted sum of the tokens for each row of the weights."""
    return torch.stack([torch.stack([w * t for w, t in zip(row, tokens, strict=True)]).sum(dim=0) for row in weights])


def validity(keys: int) -> Tensor:
    """Return the mask of valid tokens of three examples, one of which has none in a block in the middle."""
    valid = torch.arange(keys) < torch.tensor([keys, keys * 2 // 3, 1])[:, None]
    valid[0, keys // 4 : keys // 2] = False
    return valid


@cache
def written_out(causal: bool, padded: bool, keys: int) -> Tensor:
    """Attention of each query over the keys of its own block (if causal, up to itself) and E K, F V of each other visible block."""
    built, (query, key, value) = build(41, causal=causal), draw(keys)
    valid = validity(keys) if padded else None
    out, n, c = torch.zeros_like(query), key.shape[2], built.block
    for b, h in product(range(query.shape[0]), range(query.shape[1])):
        inside = {first: [j for j in range(first, min(first + c, n)) if valid is None or valid[b, j]] for first in range(0, n, c)}
        compressed = {}
        for first, own in inside.items():
            columns = [j - first for j in own]
            maps = ((built.key_projection, key), (built.value_projection, value))
            compressed[first] = [mixed(weights[:, columns], [x[b, h, j] for j in own]) for weights, x in maps if own]
        for i in range(n):
            rows, values = [], []
            for first, own in inside.items():
                if first <= i < first + c:
                    seen = [j for j in own if j <= i or not built.geometry.causal]
                    rows += [key[b, h, j] for j in seen]
                    values += [value[b, h, j] for j in seen]
                elif own and (first < i or not built.geometry.causal):
                    rows += compressed[first][0]
                    values += compressed[first][1]
            if rows:
                out[b, h, i] = (torch.stack(rows) @ query[b, h, i] / 8**0.5).softmax(0) @ torch.stack(values)
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("keys", [41, 36, 7, 60])
@pytest.mark.parametrize("implementation", ["definition", "tiled"])
def test_equals_its_definition(implementation, causal, padded, keys):
    built = build(41, causal=causal, implementation=implementation)
    assert built.block == 9
    found = built(*draw(keys), key_valid=validity(keys) if padded else None)
    torch.testing.assert_close(found, written_out(causal, padded, keys), rtol=0, atol=1e-12)


def test_a_block_holds_the_root_of_length_times_keys():
    assert block_size(16384, Options(projected_length=4)) == 256
    assert block_size(16384, Options(projected_length=4, block_scale=0.5)) == 128
    assert block_size(3, Options(projected_length=4)) == 5
