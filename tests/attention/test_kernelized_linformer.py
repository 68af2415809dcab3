"""Kernelized Linformer against its equation, written out in float64."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor
from written_out import builder, draw, projected

from attn_zoo import Geometry
from attn_zoo.attention.low_rank.kernelized_linformer import KernelizedLinformer

GEOMETRY = Geometry(heads=2, head_dim=8, queries=33, keys=33)


build = builder(KernelizedLinformer, projected_length=6)


def phi(built: KernelizedLinformer, x: Tensor) -> Tensor:
    """Feature map φ without a stabiliser."""
    if built.options.feature_map.value == "elu":
        return torch.where(x > 0, x + 1, x.exp())
    x = x / 8**0.25
    return (x @ built.directions.T - x.square().sum(-1, keepdim=True) / 2).exp()


def written_out(built: KernelizedLinformer, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None) -> Tensor:
    """Weighted mean of projected values with weights φ(q)·φ(k') over projected keys k'."""
    out = torch.empty_like(query)
    for b, h in product(range(query.shape[0]), range(query.shape[1])):
        keep = torch.arange(key.shape[2]) if valid is None else valid[b].nonzero()[:, 0]
        short_key, short_value = (projected(built.maps[0], t[b, h], role, h, keep) for role, t in enumerate((key, value)))
        weights = phi(built, query[b, h]) @ phi(built, short_key).T
        out[b, h] = (weights / weights.sum(-1, keepdim=True)) @ short_value
    return out


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("feature_map", ["elu", "favor"])
@pytest.mark.parametrize("projection", ["learned", "mean", "max", "convolution"])
@pytest.mark.parametrize("sharing", ["none", "key_value"])
def test_equals_the_equation(padded, feature_map, projection, sharing):
    built = build(feature_map=feature_map, features=24, projection=projection, sharing=sharing, implementation="definition")
    valid = torch.arange(33) < torch.tensor([33, 20, 1])[:, None] if padded else None
    expected = written_out(built, *draw(), valid)
    torch.testing.assert_close(built(*draw(), key_valid=valid), expected, rtol=0, atol=1e-11)
