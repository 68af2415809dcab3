"""Linformer against its equation, written out in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attn_zoo import Geometry, build_attention
from attn_zoo.attention import blocks
from attn_zoo.attention.linformer import Linformer

GEOMETRY = Geometry(heads=2, head_dim=8, queries=33, keys=33)


def draw(*, keys: int = 33, queries: int = 33, batch: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(batch, 2, n, 8, dtype=torch.float64, generator=generator) for n in (queries, keys, keys))
    return query, key, value


def written_out(e: Tensor, f: Tensor, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None) -> Tensor:
    """Eq. 7, one example and one head at a time; padding is left out of the sums over positions."""
    out = torch.empty_like(query)
    for b in range(query.shape[0]):
        keep = torch.arange(key.shape[2]) if valid is None else valid[b].nonzero()[:, 0]
        for h in range(query.shape[1]):
            e_h, f_h = (m if m.dim() == 2 else m[h] for m in (e, f))
            projected_key, projected_value = e_h[:, keep] @ key[b, h, keep], f_h[:, keep] @ value[b, h, keep]
            out[b, h] = (query[b, h] @ projected_key.T / 8**0.5).softmax(-1) @ projected_value
    return out


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("sharing", ["per_head", "headwise"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("queries", [33, 7])
def test_equals_the_equation(implementation, sharing, padded, queries):
    torch.manual_seed(0)
    geometry = Geometry(heads=2, head_dim=8, queries=queries, keys=33)
    built = build_attention("linformer", geometry, projected_length=6, sharing=sharing, implementation=implementation).double()
    assert isinstance(built, Linformer)
    valid = torch.arange(33) < torch.tensor([33, 20, 1])[:, None] if padded else None
    query, key, value = draw(queries=queries)
    expected = written_out(built.key_projection, built.value_projection, query, key, value, valid)
    torch.testing.assert_close(built(query, key, value, key_valid=valid), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sharing", ["per_head", "headwise"])
def test_blocks_of_queries_change_nothing(sharing, monkeypatch):
    torch.manual_seed(0)
    built = build_attention("linformer", GEOMETRY, projected_length=6, sharing=sharing).double()
    whole = built(*draw())
    monkeypatch.setattr(blocks, "CHEAP_BYTES", 5 * 3 * 2 * 6 * 8)
    assert len(blocks.row_blocks(draw()[0], columns=6)) == 7
    torch.testing.assert_close(built(*draw()), whole, rtol=0, atol=1e-14)


def test_projections_keep_the_scale_of_keys():
    torch.manual_seed(0)
    built = build_attention("linformer", Geometry(1, 8, 512, 512), projected_length=64)
    assert isinstance(built, Linformer)
    projected = built.key_projection @ torch.randn(512, 4096)
    assert projected.std().item() == pytest.approx(1.0, abs=0.02)


def test_dropout_drops_weights_in_training():
    torch.manual_seed(0)
    built = build_attention("linformer", GEOMETRY, dropout=0.9).double()
    once, again = built(*draw()), built(*draw())
    assert not torch.equal(once, again)
    built.eval()
    assert torch.equal(built(*draw()), built(*draw()))
