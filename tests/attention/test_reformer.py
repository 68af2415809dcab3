"""Reformer against buckets, ranks and chunks counted one by one in float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from written_out import builder, require_same_in, several

from attn_zoo.attention.content import _hashing as hashing
from attn_zoo.attention.content.reformer import Reformer
from attn_zoo.kernels.cpu import _tiling, lsh

HEADS, HEAD_DIM = 2, 8


build = builder(Reformer, implementation="eager")


def reachable(buckets: list[int], valid: list[bool], chunk: int, causal: bool) -> Tensor:
    """Return which keys each query sees in one round: same bucket, same chunk or the previous one (cyclic unless causal)."""
    n = len(buckets)
    rank = [sum(valid[j] and buckets[j] == buckets[i] for j in range(i)) for i in range(n)]
    size = {b: sum(valid[j] and buckets[j] == b for j in range(n)) for b in set(buckets)}
    sees = [[False] * n for _ in range(n)]
    for i in range(n):
        chunks = -(-size[buckets[i]] // chunk)
        mine = rank[i] // chunk
        before = mine - 1 if mine > 0 or causal else chunks - 1
        for j in range(n):
            together = valid[i] and valid[j] and buckets[i] == buckets[j]
            sees[i][j] = together and rank[j] // chunk in (mine, before) and (j <= i or not causal)
    return torch.tensor(sees)


def written_out(built: Reformer, query: Tensor, value: Tensor, valid: Tensor) -> Tensor:
    """Eq. 2 to 5 over all pairs: weights summed over rounds; a key found in N rounds is corrected by a factor 1/N."""
    o, causal = built.options, built.geometry.causal
    buckets = hashing.lsh_buckets(
        query, built.rotations, o.buckets or hashing.default_buckets(built.geometry.keys, o.chunk), tiled=True
    )
    out = torch.zeros_like(query)
    for b in range(query.shape[0]):
        for h in range(query.shape[1]):
            sees = torch.stack([reachable(buckets[r, b, h].tolist(), valid[b].tolist(), o.chunk, causal) for r in range(o.rounds)])
            key = query[b, h] / query[b, h].norm(dim=-1, keepdim=True).clamp(min=1e-12)
            weight = (query[b, h] @ key.T / HEAD_DIM**0.5).exp() * sees.sum(0)
            if o.duplicates.name == "corrected":
                weight = weight / sees.sum(0).clamp(min=1)
            alone = (weight * (1 - torch.eye(len(key)))).sum(-1) == 0
            weight = torch.where(torch.eye(len(key), dtype=torch.bool), (alone & valid[b]).double().diag(), weight)
            out[b, h] = weight / weight.sum(-1, keepdim=True).clamp(min=1e-300) @ value[b, h]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("duplicates", ["corrected", "counted"])
@pytest.mark.parametrize(("rounds", "buckets", "chunk"), [(1, 4, 4), (3, 4, 3), (2, 1, 64), (2, 32, 2)])
def test_equals_buckets_counted_one_by_one(causal, padded, duplicates, rounds, buckets, chunk, monkeypatch):
    monkeypatch.setattr(_tiling, "CACHE_BYTES", 4000)
    for n in (1, 2, 7, 33):
        options = {"rounds": rounds, "buckets": buckets, "chunk": chunk, "duplicates": duplicates}
        built = build(n, causal=causal, **options)
        query, value = several(2, n)
        valid = torch.arange(n) < torch.tensor([n, max(1, n // 2), 1])[:, None] if padded else torch.ones(3, n, dtype=torch.bool)
        hidden = query.masked_fill(~valid[:, None, :, None], 0)
        call = partial(built, query, query, value, key_valid=valid if padded else None)
        expected = written_out(built, hidden, value, valid)
        require_same_in(["definition", "tiled"], built, call, expected, (query, value), atol=1e-11)


@pytest.mark.parametrize("implementation", ["eager", "tiled"])
@pytest.mark.parametrize("duplicates", ["corrected", "counted"])
def test_who_sees_nobody_else_weighs_one_in_single_precision(duplicates, implementation):
    """At the first position of a causal sequence, the score with itself is too large for float32 to tell rounds apart."""
    built = build(33, causal=True, rounds=3, chunk=4, duplicates=duplicates, implementation=implementation).float()
    query, value = (x.detach().float().requires_grad_() for x in several(2, 33))
    out = built(query, query, value)
    of_query, of_value = torch.autograd.grad(out[:, :, 0].sum(), (query, value))
    torch.testing.assert_close(out[:, :, 0], value[:, :, 0])
    torch.testing.assert_close(of_value[:, :, 0], torch.ones_like(of_value[:, :, 0]))
    assert not of_value[:, :, 1:].any()
    assert not of_query.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("lsh", [hashing.lsh_buckets, partial(hashing.lsh_buckets, tiled=True)])
def test_a_hash_is_the_first_of_the_nearest_directions(dtype, lsh):
    """Each digit is compared. Integers avoid rounding and give many ties; a vector of zeros has only ties."""
    torch.manual_seed(0)
    x = torch.randint(-2, 3, (2, 3, 500, 8)).to(dtype)
    x[:, :, :3] = 0
    rotations = torch.randint(-2, 3, (3, 2, 8, hashing.ROTATIONS)).to(dtype)
    codes = lsh(x, rotations, 64)
    for at in range(2):
        turned = [x @ rotations[:, at, :, part] for part in (slice(8), slice(8, 10))]
        high, low = (torch.cat([part, -part], dim=-1).argmax(dim=-1) for part in turned)
        assert torch.equal(codes[at], high * 4 + low)
    assert not codes[..., :3].any()


@pytest.mark.parametrize("buckets", [1, 2, 16, 64, 4096])
def test_tiles_hash_as_eager_does(buckets, monkeypatch):
    monkeypatch.setattr(lsh, "ROWS", 64)
    torch.manual_seed(0)
    x, rotations = torch.randn(2, 3, 300, 8), torch.randn(3, 2, 8, hashing.ROTATIONS)
    assert torch.equal(hashing.lsh_buckets(x, rotations, buckets, tiled=True), hashing.lsh_buckets(x, rotations, buckets))


def test_near_directions_share_a_bucket_more_often_than_far_ones():
    torch.manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(1, 1, 2000, 16), dim=-1)
    rotations = torch.randn(1, 8, 16, hashing.ROTATIONS)
    shares = []
    for noise in (0.05, 0.3, 3.0):
        y = torch.nn.functional.normalize(x + noise * torch.randn_like(x) / 4, dim=-1)
        together = hashing.lsh_buckets(x, rotations, 64, tiled=True) == hashing.lsh_buckets(y, rotations, 64, tiled=True)
        shares.append(together.double().mean().item())
    assert shares[0] > 0.7 > shares[1] > 0.15 > shares[2], shares


@pytest.mark.parametrize("buckets", [1, 2, 16, 32, 256, 4096])
def test_bucket_codes_are_in_range_and_used(buckets):
    torch.manual_seed(0)
    codes = hashing.lsh_buckets(torch.randn(1, 1, 20_000, 16), torch.randn(1, 1, 16, hashing.ROTATIONS), buckets, tiled=True)
    assert codes.min() >= 0
    assert codes.max() < buckets
    assert len(codes.unique()) > 0.5 * buckets


def test_hashing_costs_grow_with_the_logarithm_of_buckets():
    assert [hashing.rotation_columns(b) for b in (1, 2, 16, 256, 4096)] == [0, 1, 8, 16, 24]


@pytest.mark.parametrize("implementation", ["eager", "tiled"])
def test_redraws_in_training_only(implementation):
    built, (query, value) = (
        build(33, redraw=1, implementation=implementation),
        several(2, 33),
    )
    first = built.rotations.clone()
    built.eval()(query, query, value)
    assert torch.equal(built.rotations, first)
    built.train()(query, query, value)
    assert not torch.equal(built.rotations, first)
