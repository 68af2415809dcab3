"""Linformer against its equation, written out in float64, for every sharing, projection and padding."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor
from written_out import projected

from attn_zoo import Geometry, UnsupportedError, build_attention
from attn_zoo.analysis.starts import Start, initial_rows
from attn_zoo.attention.low_rank._projections import MatrixMap
from attn_zoo.attention.low_rank.linformer import Linformer, Options
from attn_zoo.contract import plain_options
from attn_zoo.kernels.cpu import projection as tiles

GEOMETRY = Geometry(heads=2, head_dim=8, queries=33, keys=33)
SHARINGS = ("none", "headwise", "key_value", "layerwise")
PROJECTIONS = ("learned", "random", "mean", "max", "convolution")


def build(geometry: Geometry = GEOMETRY, *, seed: int = 0, **options) -> Linformer:
    torch.manual_seed(seed)
    built = build_attention("linformer", geometry, **{"projected_length": 6, **options}).double()
    assert isinstance(built, Linformer)
    return built


def draw(*, keys: int = 33, queries: int = 33, batch: int = 4, heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(batch, heads, n, 8, dtype=torch.float64, generator=generator) for n in (queries, keys, keys))
    return query, key, value


def projections(built: Linformer) -> Tensor:
    """Return E and F."""
    (map_,) = built.maps
    assert isinstance(map_, MatrixMap)
    return map_.matrix.detach().clone()


def project(built: Linformer, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the projected keys and values of the same tokens."""
    return built.maps[0].project(tokens, tokens, None)


def padding(keys: int = 33) -> Tensor:
    """Return a mask of four rows: no padding, padding at the end, one valid token, and a gap in the middle that empties windows."""
    valid = torch.arange(keys) < torch.tensor([keys, keys * 2 // 3, 1, keys])[:, None]
    valid[3, keys // 4 : keys * 3 // 4] = False
    return valid


def written_out(built: Linformer, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None) -> Tensor:
    """Eq. 7, one example and one head at a time; padding is left out of every sum, mean and maximum over positions."""
    out = torch.empty_like(query)
    for map_ in built.maps:
        for b, (copy, h) in product(range(query.shape[0]), enumerate(map_.heads)):
            keep = torch.arange(key.shape[2]) if valid is None else valid[b].nonzero()[:, 0]
            short_key, short_value = projected(map_, key[b, h], 0, copy, keep), projected(map_, value[b, h], 1, copy, keep)
            out[b, h] = (query[b, h] @ short_key.T / 8**0.5).softmax(-1) @ short_value
    return out


@pytest.mark.parametrize("implementation", ["definition", "eager", "sdpa", "triton"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_equals_the_equation(implementation, sharing, projection, padded):
    if implementation == "triton":
        if torch.cuda.is_available():
            pytest.skip("float64 is the interpreter's; the kernels' own tests run on the GPU")
        if projection not in ("learned", "random"):
            with pytest.raises(UnsupportedError, match="Use projection=learned or random"):
                build(sharing=sharing, projection=projection, implementation=implementation)
            return
    built = build(sharing=sharing, projection=projection, implementation=implementation)
    valid = padding() if padded else None
    expected = written_out(built, *draw(), valid)
    torch.testing.assert_close(built(*draw(), key_valid=valid), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("keys", [32, 33, 7, 1])
def test_crosses_and_takes_shorter_inputs(projection, keys):
    built = build(Geometry(heads=2, head_dim=8, queries=5, keys=33), projection=projection)
    query, key, value = draw(queries=5, keys=keys)
    torch.testing.assert_close(built(query, key, value), written_out(built, query, key, value, None), rtol=0, atol=1e-12)
    if keys < 33:
        longer = [torch.cat([t, torch.full((4, 2, 33 - keys, 8), torch.nan, dtype=t.dtype)], dim=2) for t in (key, value)]
        valid = (torch.arange(33) < keys).expand(4, -1)
        torch.testing.assert_close(built(query, *longer, key_valid=valid), built(query, key, value), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_padding_has_no_influence_bit_for_bit(sharing, projection):
    built, valid = build(sharing=sharing, projection=projection), padding()
    query, key, value = draw()
    outs = []
    for fill in (0.0, torch.nan, torch.inf, 1e300):
        dirty = [t.masked_fill(~valid[:, None, :, None], fill) for t in (key, value)]
        outs.append(built(query, *dirty, key_valid=valid))
    assert all(torch.equal(out, outs[0]) for out in outs)


@pytest.mark.parametrize("projection", PROJECTIONS)
@pytest.mark.parametrize("padded", [False, True])
def test_heads_may_have_lengths_of_their_own(projection, padded):
    built = build(Geometry(4, 8, 33, 33), projected_lengths="6+3+6+11", sharing="none", projection=projection)
    assert [map_.heads for map_ in built.maps] == [(1,), (0, 2), (3,)]
    valid = padding() if padded else None
    torch.testing.assert_close(
        built(*draw(heads=4), key_valid=valid), written_out(built, *draw(heads=4), valid), rtol=0, atol=1e-12
    )
    if projection == "learned":
        assert sum(p.numel() for p in built.parameters()) == 2 * (6 + 3 + 6 + 11) * 33


@pytest.mark.parametrize(("sharing", "matrices"), [("none", 24), ("headwise", 2), ("key_value", 1), ("layerwise", 1)])
def test_sharing_holds_as_many_matrices_as_the_paper_counts(sharing, matrices):
    built = build(Geometry(12, 8, 33, 33), sharing=sharing)
    assert sum(p.numel() for p in built.parameters()) == matrices * 6 * 33


@pytest.mark.parametrize("projection", ["learned", "random", "convolution"])
def test_projections_keep_the_scale_of_keys(projection):
    built = build(Geometry(1, 64, 512, 512), projected_length=64, projection=projection).float()
    key, value = torch.randn(8, 1, 512, 64), torch.randn(8, 1, 512, 64)
    for short in built.maps[0].project(key, value, None):
        assert short.std().item() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(("init", "mean"), [("random", 0.0), ("average", 1.0)])
def test_rows_start_with_the_sum_of_their_initialisation(init, mean):
    weight = build(Geometry(1, 8, 512, 512), projected_length=256, init=init).get_parameter("own_maps.0.weight")
    sums = weight.sum(dim=-1)
    assert sums.mean().item() == pytest.approx(mean, abs=0.15) and sums.std().item() == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(("n", "k"), [(33, 4), (33, 32), (64, 16), (7, 7)])
def test_pooling_starts_with_the_means_that_transplants_start_with(n, k):
    built = build(Geometry(2, 8, n, n), projected_length=k, init="pooling", sharing="none", allow_full_rank=k == n)
    weight = built.get_parameter("own_maps.0.weight")
    assert weight.shape == (2, 2, k, n) and weight.is_contiguous() and weight.requires_grad
    assert torch.allclose(weight.double(), initial_rows(torch.eye(n), k, Start.pooling).expand_as(weight))


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_equalised_projections_start_equal_and_move_by_less(sharing, implementation):
    plain, equalised = (build(sharing=sharing, equalised=each, implementation=implementation) for each in (False, True))
    query, key, value = draw()
    assert torch.allclose(plain(query, key, value), equalised(query, key, value), rtol=0, atol=1e-6)
    before = projections(plain)
    for built in (plain, equalised):
        optimiser = torch.optim.Adam(built.parameters(), lr=0.01)
        built(query, key, value).square().sum().backward()
        optimiser.step()
    steps = [(projections(built) - before).abs().max().item() for built in (plain, equalised)]
    assert steps == pytest.approx([0.01, 0.01 / 33**0.5], rel=1e-3)


@pytest.mark.parametrize("lengths", [(40,), (1,), (1, 40)])
def test_equalised_projections_keep_their_maps_and_their_scale_when_resized(lengths):
    plain, equalised = (build(equalised=each, allow_full_rank=True) for each in (False, True))
    for built in (plain, equalised):
        for length in lengths:
            built.resize_length(length)
    assert torch.allclose(projections(plain), projections(equalised), rtol=0, atol=1e-6)
    assert [built.maps[0].scale for built in (plain, equalised)] == [1.0, lengths[-1] ** -0.5]


def test_at_their_defaults_initialisation_and_scale_are_in_no_spec():
    assert not {"init", "equalised"} & plain_options(Options(projected_length=4)).keys()
    assert plain_options(Options(projected_length=4, init="average"))["init"] == "average"


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize(("weighed", "padded"), [(False, False), (True, False), (True, True)])
def test_product_along_the_length_has_exact_first_and_second_gradients(batch, weighed, padded, monkeypatch):
    torch.manual_seed(0)
    weight, tokens = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 5), (batch, 5, 2)))
    valid = torch.rand(batch, 5) > 0.3 if padded else None

    def product(weight: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        mixed, masses = tiles.mix(weight, tokens, valid, weigh=weighed)
        return (mixed, masses) if weighed else (mixed,)

    for few in (4, 8):  # one product for each example, and one for all
        monkeypatch.setattr(tiles, "FEW", few)
        assert torch.autograd.gradcheck(product, (weight, tokens))
        assert torch.autograd.gradgradcheck(product, (weight, tokens))


def test_frozen_projections_stay_while_gradients_pass():
    built = build(frozen=True)
    assert not any(p.requires_grad for p in built.parameters())
    query, key, value = (t.requires_grad_() for t in draw())
    built(query, key, value).sum().backward()
    assert key.grad is not None
    assert key.grad.abs().sum() > 0
    assert not any(p.requires_grad for p in build(projection="random").parameters())
    assert "own_maps.0.weight" in build(projection="random").state_dict()


@pytest.mark.parametrize("sharing", ["none", "headwise", "key_value"])
@pytest.mark.parametrize("length", [66, 50, 20, 11])
def test_resizing_keeps_what_a_steady_sequence_is_projected_to(sharing, length):
    built = build(sharing=sharing)
    steps = torch.randn(4, 2, 11, 8, dtype=torch.float64)  # each is repeated three times to fill 33 positions
    before = project(built, steps.repeat_interleave(3, dim=2))
    flat = torch.ones(1, 2, 33, 8, dtype=torch.float64)
    flat_before = project(built, flat)
    built.resize_length(length)
    assert built.geometry == Geometry(2, 8, length, length)
    flat_after = project(built, flat[:, :, :1].expand(-1, -1, length, -1))
    for mine, theirs in zip(flat_after, flat_before, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    if length == 11:  # shrinking merges equal neighbours without loss
        for mine, theirs in zip(project(built, steps), before, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    with pytest.raises(UnsupportedError, match="must be less than the 6 keys"):
        built.resize_length(6)


def test_resized_convolution_keeps_the_sum_of_its_taps():
    built = build(projection="convolution")
    flat = torch.ones(1, 2, 33, 8, dtype=torch.float64)
    before = project(built, flat)[0][:, :, 0]
    built.resize_length(66)
    after = project(built, torch.ones(1, 2, 66, 8, dtype=torch.float64))[0][:, :, 0]
    torch.testing.assert_close(after, before, rtol=0, atol=1e-12)


def test_layers_with_lengths_of_their_own_must_know_which_they_are():
    with pytest.raises(UnsupportedError, match="Call attn_zoo"):
        build(projected_lengths="6/4")(*draw())
