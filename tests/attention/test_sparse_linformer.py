"""Sparse Linformer against its equation, written out in float64."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from test_normalisers import defined
from torch import Tensor
from written_out import builder, draw, projected

from attn_zoo import Geometry, card
from attn_zoo.attention.low_rank.sparse_linformer import SparseLinformer
from attn_zoo.kernels.cpu import projection as tiles

GEOMETRY = Geometry(heads=2, head_dim=8, queries=33, keys=33)


build = builder(SparseLinformer, projected_length=6)


def written_out(built: SparseLinformer, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None, alpha: float) -> Tensor:
    """α-entmax attention over the projected keys, empty windows left out."""
    out = torch.empty_like(query)
    for b, h in product(range(query.shape[0]), range(query.shape[1])):
        keep = torch.arange(key.shape[2]) if valid is None else valid[b].nonzero()[:, 0]
        short_key, short_value = (projected(built.maps[0], t[b, h], role, h, keep) for role, t in enumerate((key, value)))
        out[b, h] = defined(query[b, h] @ short_key.T / math.sqrt(8), alpha) @ short_value
    return out


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("projection", ["learned", "random", "mean", "max", "convolution"])
@pytest.mark.parametrize("sharing", ["none", "key_value"])
@pytest.mark.parametrize("implementation", ["definition", "tiled"])
def test_equals_the_equation(implementation, padded, alpha, projection, sharing):
    built = build(alpha=alpha, projection=projection, sharing=sharing, implementation=implementation)
    valid = torch.arange(33) < torch.tensor([33, 20, 1])[:, None] if padded else None
    expected = written_out(built, *draw(scale=2.0), valid, alpha)
    torch.testing.assert_close(built(*draw(scale=2.0), key_valid=valid), expected, rtol=0, atol=1e-11)


def test_costs_what_linformer_costs_and_its_scores_once_more():
    """The backward pass of tiles recomputes the scores."""
    geometry = Geometry(4, 64, 1024, 1024)
    sparse, dense = (
        card(name).cost(geometry, card(name).options(projected_length=128)) for name in ("sparse_linformer", "linformer")
    )
    scores = 2 * 4 * 1024 * 128 * 64
    assert (sparse.flops, sparse.parameters) == (dense.flops, dense.parameters)
    assert sparse.backward_flops == dense.backward_flops + scores  # type: ignore[operator]


def test_blocks_of_queries_change_nothing(monkeypatch):
    built = build(implementation="tiled")
    whole = built(*draw(scale=2.0))
    monkeypatch.setattr(tiles, "CHEAP_BYTES", 5 * 3 * 2 * 6 * 8)  # blocks of five queries
    torch.testing.assert_close(built(*draw(scale=2.0)), whole, rtol=0, atol=1e-14)
