"""Approximation error against exact attention: the measure against explicit sums, and mechanisms whose error is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from attn_zoo import UnsupportedError
from attn_zoo.analysis.error import Reference, exact_attention, relative_error
from attn_zoo.analysis.feeding import attend, build_layers
from attn_zoo.analysis.inputs import AttentionInputs, random_inputs
from attn_zoo.contract import Geometry
from attn_zoo.count import activation_bytes
from attn_zoo.registry import card

LENGTH = 24


@pytest.fixture(scope="module")
def inputs() -> AttentionInputs:
    return random_inputs(2, 3, LENGTH, 8, scale=1.5, seed=1)


@pytest.fixture(scope="module")
def reference(inputs) -> Reference:
    return Reference([inputs, random_inputs(2, 3, LENGTH, 8, scale=1.5, seed=2)])


def padded(inputs: AttentionInputs, content: float) -> AttentionInputs:
    """Return inputs in which the last five tokens of the first sequence are padding that holds ``content``."""
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    valid[0, -5:] = False
    hidden = ~valid[:, None, :, None]
    parts = {name: getattr(inputs, name).masked_fill(hidden, content) for name in ("query", "key", "value")}
    return replace(inputs, **parts, key_valid=valid)


def test_random_inputs_have_scores_of_the_given_deviation():
    drawn = random_inputs(4, 4, 128, 16, scale=3.0, seed=5)
    scores = drawn.query @ drawn.key.mT / 16**0.5
    assert float(scores.std()) == pytest.approx(3.0, rel=0.1) and float(drawn.value.std()) == pytest.approx(1.0, rel=0.05)
    assert torch.equal(drawn.query, random_inputs(4, 4, 128, 16, scale=3.0, seed=5).query)
    assert not torch.equal(drawn.query, random_inputs(4, 4, 128, 16, scale=3.0, seed=6).query)
    with pytest.raises(ValueError, match="length must be at least 1, because it is a count"):
        random_inputs(1, 1, 0, 4)
    with pytest.raises(ValueError, match="scale must be positive, because it is the standard deviation"):
        random_inputs(1, 1, 4, 4, scale=math.nan)


@pytest.mark.parametrize("causal", [False, True])
def test_the_exact_output_is_softmax_written_out(inputs, causal):
    exact = exact_attention(replace(inputs, causal=causal))
    assert exact.dtype == torch.float64
    q, k, v = (part.double() for part in (inputs.query, inputs.key, inputs.value))
    for row in (0, 7, LENGTH - 1):
        reach = row + 1 if causal else LENGTH
        weights = [math.exp(float(q[1, 2, row] @ k[1, 2, j]) / math.sqrt(8)) for j in range(reach)]
        mixed = torch.stack([weight * v[1, 2, j] for j, weight in enumerate(weights)]).sum(dim=0) / sum(weights)
        torch.testing.assert_close(exact[1, 2, row], mixed, rtol=1e-12, atol=1e-12)


def test_the_error_is_frobenius_over_real_queries_and_by_head():
    exact = torch.zeros(1, 2, 3, 2, dtype=torch.float64)
    exact[0, 0], exact[0, 1] = torch.tensor([[3.0, 0.0], [0.0, 4.0], [9.0, 9.0]]), 1.0
    out = exact.clone()
    out[0, 0, 0, 1], out[0, 0, 2] = 1.0, -50.0
    valid = torch.tensor([[True, True, False]])
    assert relative_error(out, exact, valid).tolist() == [[pytest.approx(1 / 5), 0.0]]
    assert relative_error(out, exact)[0, 0] > 5, "without a mask the last query counts"
    with pytest.raises(ValueError, match="must be finite and not zero"):
        relative_error(out, torch.zeros_like(exact))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("softmax", {}),
        ("topk", {"kept": LENGTH}),
        ("longformer", {"window": 2 * LENGTH + 1, "global_tokens": 0}),
        ("longformer", {"window": 2 * LENGTH + 1, "global_tokens": 2}),
        ("local", {"block": LENGTH}),
        ("block_sparse", {"block": LENGTH}),
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_what_sees_everything_is_exact(inputs, name, options, causal):
    error = Reference([replace(inputs, causal=causal)]).error(name, options)
    assert error.mean < 1e-12
    assert error.errors.shape == (1, 1, 2, 3) and not error.drawn and error.over_draws is None


def test_less_is_worse(reference):
    windows = [reference.error("longformer", {"window": width, "global_tokens": 0}).mean for width in (5, 13, 29, 49)]
    assert windows == sorted(windows, reverse=True) and windows[0] > 0.5 and windows[-1] < 1e-12
    kept = [reference.error("topk", {"kept": k}).mean for k in (2, 6, 12, LENGTH)]
    assert kept == sorted(kept, reverse=True) and kept[-1] < 1e-12


def test_performer_nears_with_its_features():
    reference = Reference([random_inputs(2, 2, 32, 8, scale=0.5, seed=0)])
    errors = {m: reference.error("performer", {"features": m}, seeds=4) for m in (8, 64, 512)}
    means = [error.mean for error in errors.values()]
    assert means[0] > 1.5 * means[1] > 2.25 * means[2]
    for error in errors.values():
        assert error.drawn and error.errors.shape == (4, 1, 2, 2)
        assert error.over_draws == pytest.approx(float(error.errors.mean(dim=(1, 2, 3)).std()))
    assert errors[8].flops < errors[64].flops < errors[512].flops


def test_uniform_is_what_the_mean_of_values_gives(reference):
    error = reference.error("uniform", {}, seeds=3)
    expected = []
    for layer in reference.layers:
        exact = exact_attention(layer)
        gap = layer.value.mean(dim=2, keepdim=True) - exact
        expected.append(gap.flatten(2).norm(dim=-1) / exact.flatten(2).norm(dim=-1))
    torch.testing.assert_close(error.errors, torch.stack(expected)[None])
    assert error.by_layer == [pytest.approx(float(layer.mean())) for layer in expected]
    assert error.over_heads == pytest.approx(float(torch.stack(expected).mean(dim=1).flatten().std()))
    assert error.reads == ("value",) and error.parameters == 0


@pytest.mark.parametrize("name", ["softmax", "uniform", "longformer", "linformer", "performer", "nystrom", "reformer", "none"])
def test_padding_has_no_part(inputs, name):
    ones, others = (Reference([padded(inputs, content)]).error(name, {}).errors for content in (1.0, -30.0))
    torch.testing.assert_close(ones, others, rtol=1e-9, atol=1e-12)


def test_padded_queries_are_left_out(inputs):
    """The error of a padded sequence equals that of the same sequence without its padded tokens."""
    hidden = Reference([padded(inputs, 7.0).sequence(0)]).error("longformer", {"window": 5, "global_tokens": 0})
    cut = {name: getattr(inputs, name)[:1, :, :-5] for name in ("query", "key", "value")}
    short = Reference([AttentionInputs(**cut)]).error("longformer", {"window": 5, "global_tokens": 0})
    torch.testing.assert_close(hidden.errors, short.errors, rtol=1e-9, atol=0)


def test_costs_and_parameters_are_those_of_the_card(reference):
    error = reference.error("linformer", {"projected_length": 4}, seeds=2)
    options = card("linformer").options(projected_length=4)
    cost = card("linformer").cost(Geometry(3, 8, LENGTH, LENGTH), options)
    kept = activation_bytes(card("linformer"), Geometry(3, 8, LENGTH, LENGTH), options)
    assert (error.flops, error.activation_bytes) == (cost.flops, kept)
    assert error.parameters == cost.parameters > 0 and error.drawn
    assert error.errors[0, 0].ne(error.errors[1, 0]).all(), "every seed is a draw of its own"


def test_keys_that_are_queries_are_said_and_compared_both_ways(reference, inputs):
    error = reference.error("reformer", {"chunk": LENGTH, "buckets": 1, "rounds": 1})
    assert error.tied is not None and error.tied != pytest.approx(error.mean, rel=0.01)
    (mechanism,), _ = build_layers("reformer", [inputs], {})
    other = replace(inputs, key=torch.full_like(inputs.key, torch.nan)).double()
    torch.testing.assert_close(attend(mechanism, other), attend(mechanism, inputs.double()))
    assert reference.error("linear", {}).tied is None


def test_streams_are_the_projections_they_start_as(reference):
    assert reference.error("longformer", {"global_tokens": 1}).streams == {
        "global_query": "query",
        "global_key": "key",
        "global_value": "value",
    }
    assert reference.error("gated_linear", {}).streams == {"gate": "key"}


def test_layers_are_joined_as_in_a_model(reference):
    layers, _ = build_layers("linformer", reference.layers, {"projected_lengths": "4/2"})
    assert [attend(*pair).shape for pair in zip(layers, reference.layers, strict=True)] == [(2, 3, LENGTH, 8)] * 2
    with pytest.raises(ValueError, match="layers"):
        build_layers("linformer", reference.layers, {"projected_lengths": "4/2/2"})


def test_building_leaves_the_generator_alone(inputs):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, drawn = build_layers("performer", [inputs], {}, seed=3)
    assert drawn and torch.equal(before, torch.get_rng_state())
    second, _ = build_layers("performer", [inputs], {}, seed=3)
    for one, other in zip(first[0].state_dict().values(), second[0].state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert not build_layers("longformer", [inputs], {})[1]


def test_refusals_are_named(inputs, reference):
    with pytest.raises(UnsupportedError, match="linformer has no causal form"):
        Reference([replace(inputs, causal=True)]).error("linformer", {})
    with pytest.raises(UnsupportedError, match="projected_length"):
        reference.error("linformer", {"projected_length": LENGTH})
    with pytest.raises(UnsupportedError, match="fnet does not support padding"):
        Reference([padded(inputs, 0.0)]).error("fnet", {})
    with pytest.raises(ValueError, match="at least one layer"):
        Reference([])
    with pytest.raises(ValueError, match="must be finite and not zero"):
        Reference([replace(inputs, value=torch.zeros_like(inputs.value))])
