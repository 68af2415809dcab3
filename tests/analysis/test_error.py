"""Approximation error against exact attention: the measure against explicit sums, and mechanisms whose error is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from attn_zoo import UnsupportedError
from attn_zoo.analysis.error import Reference, exact_attention, relative_error
from attn_zoo.analysis.inputs import AttentionInputs, attend, build_layers, random_inputs
from attn_zoo.contract import Geometry
from attn_zoo.count import activation_bytes
from attn_zoo.registry import card
from attn_zoo.rows import RowName

LENGTH = 24


@pytest.fixture(scope="module")
def inputs() -> AttentionInputs:
    return random_inputs(2, 3, LENGTH, 8, scale=1.5, seed=1)


@pytest.fixture(scope="module")
def reference(inputs) -> Reference:
    return Reference([inputs, random_inputs(2, 3, LENGTH, 8, scale=1.5, seed=2)])


def measured(reference: Reference, attention: str, seeds: int = 1, **options: Any) -> dict[str, Any]:
    return reference.error(RowName(attention, options), seeds=seeds)


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


def test_the_error_is_frobenius_and_by_head():
    exact = torch.zeros(1, 2, 2, 2, dtype=torch.float64)
    exact[0, 0], exact[0, 1] = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), 1.0
    out = exact.clone()
    out[0, 0, 0, 1] = 1.0
    assert relative_error(out, exact).tolist() == [[pytest.approx(1 / 5), 0.0]]
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
    error = measured(Reference([replace(inputs, causal=causal)]), name, 2, **options)
    assert error["error"] < 1e-12
    assert error["draws"] == 1 and error["over_draws"] is None, "a mechanism that draws nothing is built once"


def test_less_is_worse(reference):
    windows = [measured(reference, "longformer", window=width, global_tokens=0)["error"] for width in (5, 13, 29, 49)]
    assert windows == sorted(windows, reverse=True) and windows[0] > 0.5 and windows[-1] < 1e-12
    kept = [measured(reference, "topk", kept=k)["error"] for k in (2, 6, 12, LENGTH)]
    assert kept == sorted(kept, reverse=True) and kept[-1] < 1e-12


def test_performer_nears_with_its_features():
    reference = Reference([random_inputs(2, 2, 32, 8, scale=0.5, seed=0)])
    errors = [measured(reference, "performer", 4, features=m) for m in (8, 64, 512)]
    means = [error["error"] for error in errors]
    assert means[0] > 1.5 * means[1] > 2.25 * means[2]
    assert errors[0]["flops"] < errors[1]["flops"] < errors[2]["flops"]
    draws = [reference.error(RowName("performer", {"features": 8}), first_seed=seed)["error"] for seed in range(4)]
    assert errors[0]["draws"] == 4 and means[0] == pytest.approx(sum(draws) / 4)
    assert errors[0]["over_draws"] == pytest.approx(float(torch.tensor(draws, dtype=torch.float64).std()))


def test_uniform_is_what_the_mean_of_values_gives(reference):
    error = measured(reference, "uniform", 3)
    expected = []
    for layer in reference.layers:
        exact = exact_attention(layer)
        gap = layer.value.mean(dim=2, keepdim=True) - exact
        expected.append(gap.flatten(2).norm(dim=-1) / exact.flatten(2).norm(dim=-1))
    assert error["error"] == reference.uniform == pytest.approx(float(torch.stack(expected).mean()))
    assert error["by_layer"] == [pytest.approx(float(layer.mean())) for layer in expected]
    assert error["over_heads"] == pytest.approx(float(torch.stack(expected).mean(dim=1).flatten().std()))
    assert error["notes"] == "control, reads no queries and no keys" and error["parameters"] == 0


def test_costs_and_parameters_are_those_of_the_card(reference):
    error = measured(reference, "linformer", 2, projected_length=4)
    geometry, options = Geometry(3, 8, LENGTH, LENGTH), card("linformer").options(projected_length=4)
    cost, softmax = card("linformer").cost(geometry, options), card("softmax")
    kept, usual = activation_bytes(card("linformer"), geometry, options), activation_bytes(softmax, geometry, softmax.options())
    assert kept is not None and usual is not None
    assert (error["flops"], error["activation_bytes"]) == (cost.flops, kept)
    assert (error["flops_share"], error["activation_share"]) == (cost.flops / (4 * LENGTH**2 * 8 * 3), kept / usual)
    assert error["parameters"] == cost.parameters > 0 and error["over_draws"] > 0, "every seed is a draw of its own"


def test_keys_that_are_queries_are_said_and_compared_both_ways(reference, inputs):
    error = measured(reference, "reformer", chunk=LENGTH, buckets=1, rounds=1)
    assert error["tied_error"] is not None and error["tied_error"] != pytest.approx(error["error"], rel=0.01)
    (mechanism,), _ = build_layers("reformer", [inputs], {})
    other = replace(inputs, key=torch.full_like(inputs.key, torch.nan)).double()
    torch.testing.assert_close(attend(mechanism, other), attend(mechanism, inputs.double()))
    assert measured(reference, "linear")["tied_error"] is None


def test_streams_are_the_projections_they_start_as(reference):
    assert measured(reference, "longformer", global_tokens=1)["streams"] == {
        "global_query": "query",
        "global_key": "key",
        "global_value": "value",
    }
    assert measured(reference, "gated_linear")["streams"] == {"gate": "key"}


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
        measured(Reference([replace(inputs, causal=True)]), "linformer")
    with pytest.raises(UnsupportedError, match="projected_length"):
        measured(reference, "linformer", projected_length=LENGTH)
    with pytest.raises(ValueError, match="must be finite and not zero"):
        Reference([replace(inputs, value=torch.zeros_like(inputs.value))])
