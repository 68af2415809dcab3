"""Sparse Linformer against its equation, written out in float64, and its limits, Linformer and entmax."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from test_normalisers import defined
from torch import Tensor
from written_out import draw, projected

from attn_zoo import Geometry, MultiHeadAttention, build_attention, card
from attn_zoo.attention.low_rank.sparse_linformer import SparseLinformer
from attn_zoo.kernels.cpu import projection as tiles

GEOMETRY = Geometry(heads=2, head_dim=8, queries=33, keys=33)


def build(geometry: Geometry = GEOMETRY, **options) -> SparseLinformer:
    torch.manual_seed(0)
    built = build_attention("sparse_linformer", geometry, **{"projected_length": 6, **options}).double()
    assert isinstance(built, SparseLinformer)
    return built


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


@pytest.mark.parametrize("projection", ["learned", "mean"])
def test_is_linformer_at_alpha_one(projection):
    sparse, dense = (
        build(alpha=1.0, projection=projection),
        build_attention("linformer", GEOMETRY, projected_length=6, projection=projection).double(),
    )
    dense.load_state_dict(sparse.state_dict())
    mine, other = (draw(scale=2.0) for _ in range(2))
    found, expected = sparse(*mine), dense(*other)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    found.square().sum().backward()
    expected.square().sum().backward()
    for got, want in zip((*mine, *sparse.parameters()), (*other, *dense.parameters()), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=0, atol=1e-10)


def test_identity_projection_is_entmax():
    geometry = Geometry(2, 8, 33, 33)
    built = build(geometry, projected_length=33, allow_full_rank=True)
    for matrix in built.maps[0].get_parameter("weight").detach().flatten(0, 1):
        matrix.copy_(torch.eye(33))
    torch.testing.assert_close(built(*draw(scale=2.0)), build_attention("entmax", geometry)(*draw(scale=2.0)), rtol=0, atol=1e-12)


def test_costs_what_linformer_costs_and_its_scores_once_more():
    """The backward pass of tiles recomputes the scores."""
    geometry = Geometry(4, 64, 1024, 1024)
    sparse, dense = (
        card(name).cost(geometry, card(name).options(projected_length=128)) for name in ("sparse_linformer", "linformer")
    )
    scores = 2 * 4 * 1024 * 128 * 64
    assert (sparse.flops, sparse.parameters) == (dense.flops, dense.parameters)
    assert sparse.backward_flops == dense.backward_flops + scores  # type: ignore[operator]


def test_compresses_first_in_a_layer():
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 2, "sparse_linformer", length=64, projected_length=4).double()
    tokens, valid = torch.randn(3, 64, 16).double(), torch.arange(64) < torch.tensor([64, 30, 1])[:, None]
    late = MultiHeadAttention(16, 2, "sparse_linformer", length=64, projected_length=4, order="project_first").double()
    late.load_state_dict(layer.state_dict())
    assert layer.order.value == "compress_first"
    torch.testing.assert_close(layer(tokens, key_valid=valid), late(tokens, key_valid=valid), rtol=0, atol=1e-12)


def test_blocks_of_queries_change_nothing(monkeypatch):
    built = build(implementation="tiled")
    whole = built(*draw(scale=2.0))
    monkeypatch.setattr(tiles, "CHEAP_BYTES", 5 * 3 * 2 * 6 * 8)  # blocks of five queries
    torch.testing.assert_close(built(*draw(scale=2.0)), whole, rtol=0, atol=1e-14)
