"""Initial values of E and F: optimal where claimed, right to first order, and better than random on keys of low rank."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from attn_zoo.analysis.starts import best_bounds, initial_rows
from attn_zoo.contract import Geometry
from attn_zoo.contract.length_maps import equal_bounds, segment_means
from attn_zoo.registry import build_attention
from attn_zoo.transplant import Start
from attn_zoo.transplant.starts import second_moments, start
from attn_zoo.transplant.texts import shorten

N, K = 48, 8


def planted(seed: int, noise: float = 0.02) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values (batch 8, 2 heads, 48, 6) that are sums of eight slow waves along the length, plus small noise."""
    generator = torch.Generator().manual_seed(seed)
    at = (torch.arange(N) + 0.5) / N
    waves = torch.stack([torch.cos(torch.pi * wave * at) for wave in range(K)])
    key, value = (torch.einsum("bhwd,wn->bhnd", torch.randn(8, 2, K, 6, generator=generator), waves) for _ in range(2))
    jitter = noise * torch.randn(2, 8, 2, N, 6, generator=generator)
    return key + jitter[0], value + jitter[1]


def moment_of(key: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bhid,bhjd->hij", key.double(), key.double()) / len(key)


def build(name="linformer", *, layers=1, **options):
    stack = [build_attention(name, Geometry(2, 6, N, N), projected_length=K, **options) for _ in range(layers)]
    for at, mechanism in enumerate(stack):
        mechanism.join(at, stack)
    return stack


def test_on_keys_of_low_rank_the_spectrum_beats_chance():
    key, _ = planted(0)
    query = torch.randn(8, 2, N, 6, generator=torch.Generator().manual_seed(9))
    new_key, new_value = planted(1)
    exact = build_attention("softmax", Geometry(2, 6, N, N))(query, new_key, new_value)
    errors, kept = {}, {}
    for how in Start:
        torch.manual_seed(0)
        stack = build()
        kept[how] = start(stack, [moment_of(key)], how)[0]
        with torch.no_grad():
            errors[how] = float((stack[0](query, new_key, new_value) - exact).norm() / exact.norm())
    assert kept[Start.spectrum] > 0.99, "eight waves are eight directions"
    assert kept[Start.spectrum] > kept[Start.stretches] >= kept[Start.pooling] > kept[Start.random]
    for how in (Start.spectrum, Start.stretches, Start.pooling):
        assert errors[how] < 0.5 * errors[Start.random]
    assert errors[Start.spectrum] < 0.6


def test_the_best_stretches_are_the_best_of_all():
    generator = torch.Generator().manual_seed(0)
    for n, k in ((7, 1), (8, 3), (9, 5), (6, 6)):
        root = torch.randn(n, n + 2, generator=generator, dtype=torch.float64)
        moment = root @ root.T

        def worth(bounds, moment=moment):
            rows = segment_means(bounds)
            rows = rows / rows.norm(dim=1, keepdim=True)
            return float((rows @ moment @ rows.T).trace())

        found = best_bounds(moment, k)
        everything = [[0, *inner, n] for inner in combinations(range(1, n), k - 1)]
        assert found in everything and worth(found) == pytest.approx(max(map(worth, everything)), rel=1e-12)


def test_a_position_that_all_attend_to_gets_a_slot_of_its_own():
    moment = torch.eye(32, dtype=torch.float64) + 0.5
    moment[0, 0] = 40.0
    assert best_bounds(moment, 4)[:2] == [0, 1]
    assert equal_bounds(32, 4) == [0, 8, 16, 24, 32]


def test_every_start_is_right_to_first_order_in_the_scores():
    moment = moment_of(planted(0)[0]).sum(dim=0)
    for how in (Start.spectrum, Start.pooling):
        rows = initial_rows(moment, K, how)
        assert torch.allclose(rows @ rows.T, K / N * torch.eye(K, dtype=torch.float64), atol=1e-9), how
        assert torch.allclose(rows.sum(dim=1), torch.ones(K, dtype=torch.float64), atol=0.02), how
    assert torch.allclose(initial_rows(moment, K, Start.stretches).sum(dim=1), torch.ones(K, dtype=torch.float64))


def test_what_is_shared_gets_what_fits_all_and_what_is_not_its_own():
    moments = [moment_of(planted(seed)[0]) * weight for seed, weight in ((0, 1.0), (1, 5.0))]
    moments[0][0, 0, 0] += 1e4  # the first position dominates in the first head of the first layer
    first, second = build(layers=2, sharing="layerwise")
    start([first, second], moments, Start.stretches)
    whole = initial_rows(torch.stack(moments).sum(dim=(0, 1)), K, Start.stretches)
    assert second.maps[0] is first.maps[0] and torch.equal(first.maps[0].weight[0, 0], whole.float())
    own = build(sharing="none")
    start(own, moments[:1], Start.stretches)
    weight = own[0].maps[0].weight
    assert weight[0, 0, 0, 0] == 1.0 and weight[0, 1, 0, 0] < 1.0
    assert torch.equal(weight[0], weight[1]), "F is E"
    uneven = build(sharing="none", projected_lengths="4+12")
    start(uneven, moments[:1], Start.pooling)
    assert [map_.weight.shape[2] for map_ in uneven[0].maps] == [4, 12]


def test_a_random_start_is_left_as_it_was_drawn():
    stack = build()
    before = stack[0].maps[0].weight.clone()
    kept = start(stack, [moment_of(planted(0)[0])], Start.random)
    assert torch.equal(stack[0].maps[0].weight, before) and 0 < kept[0] < 1


@pytest.mark.parametrize(("name", "options"), [("linformer", {"projection": "mean"}), ("nystrom", {})])
def test_what_has_no_matrices_is_left_out(name, options):
    mechanism = build_attention(name, Geometry(2, 6, N, N), **options)
    moments = [moment_of(planted(0)[0])]
    assert start([mechanism, *build()], moments * 2, Start.spectrum) == start(build(), moments, Start.spectrum)


def test_second_moments_are_those_of_the_models_own_keys(teacher, material):
    passages = shorten(material.test[:8], 0.5, teacher.tokenizer, torch.Generator().manual_seed(3))
    found = second_moments(teacher.model, passages)
    hidden = teacher.model(**passages.call(), output_hidden_states=True).hidden_states
    layer = teacher.model.encoder.layer[1].attention.self
    key = layer.key(hidden[1]).unflatten(-1, (2, -1)).transpose(1, 2).double()
    a, b = 2, 11
    both = passages.valid[:, a] & passages.valid[:, b]
    assert 0 < int(both.sum()) < len(passages)
    right = (key[both, :, a] * key[both, :, b]).sum(dim=-1).mean(dim=0)
    assert torch.allclose(found[1][:, a, b], right, rtol=1e-4)
