"""Effective attention matrices found by probing equal those given by the mechanisms' equations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attn_zoo import UnsupportedError
from attn_zoo.analysis.effective import effective_matrix, matrix_facts
from attn_zoo.analysis.inputs import AttentionInputs, attend, build_layers, random_inputs

LENGTH = 22  # not a multiple of head_dim 8, so that the last group of probed keys is not full


@pytest.fixture(scope="module")
def inputs() -> AttentionInputs:
    return random_inputs(2, 3, LENGTH, 8, scale=1.5, seed=1)


def matrix(name: str, inputs: AttentionInputs, **options) -> torch.Tensor:
    (mechanism,), _ = build_layers(name, [inputs], options)
    return effective_matrix(mechanism, inputs)


def softmax(inputs: AttentionInputs) -> torch.Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", inputs.query.double(), inputs.key.double()) / inputs.query.shape[-1] ** 0.5
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


def test_softmax_and_uniform(inputs):
    torch.testing.assert_close(matrix("softmax", inputs), softmax(inputs))
    torch.testing.assert_close(matrix("uniform", inputs), torch.full((2, 3, LENGTH, LENGTH), 1 / LENGTH, dtype=torch.float64))
    torch.testing.assert_close(matrix("none", inputs), torch.eye(LENGTH, dtype=torch.float64).expand(2, 3, -1, -1))
    running = matrix("uniform", replace(inputs, causal=True))
    torch.testing.assert_close(running[0, 0, 4], torch.tensor([0.2] * 5 + [0.0] * (LENGTH - 5), dtype=torch.float64))


def test_linformers_is_its_weights_times_its_projection(inputs):
    (mechanism,), _ = build_layers("linformer", [inputs], {"projected_length": 5}, seed=4)
    (weight,) = mechanism.parameters()
    e, f = weight.detach().reshape(2, 5, LENGTH)  # sharing is headwise: E for the keys and F for the values of all heads
    scores = inputs.query.double() @ torch.einsum("rn,bhnd->bhrd", e, inputs.key.double()).mT / 8**0.5
    torch.testing.assert_close(effective_matrix(mechanism, inputs), scores.softmax(dim=-1) @ f)


def test_a_window_is_zero_outside_its_band(inputs):
    found = matrix("longformer", inputs, window=5, global_tokens=0)
    distance = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    assert found[..., distance > 2].eq(0).all() and found[..., distance <= 2].gt(0).all()
    band = softmax(inputs) * (distance <= 2)
    torch.testing.assert_close(found, band / band.sum(dim=-1, keepdim=True))
    with_global = matrix("longformer", inputs, window=5, global_tokens=1)
    assert with_global[..., 0].gt(0).all() and with_global[..., 0, :].gt(0).all(), "its stream of values is probed, too"


def test_causal_ones_see_no_future(inputs):
    for name in ("softmax", "linear", "performer", "reformer", "longformer", "topk"):
        found = matrix(name, replace(inputs, causal=True))
        assert found.triu(1).abs().max() < 1e-12 and found.tril().abs().sum() > 1, name


DRAWN = {"performer": {}, "reformer": {"chunk": 2}, "frozen_random": {}, "clustered": {"clusters": 3}, "bigbird": {"block": 2}}


@pytest.mark.parametrize(("name", "options"), DRAWN.items(), ids=DRAWN)
def test_random_ones_keep_their_draw_while_they_are_probed(inputs, name, options):
    (mechanism,), drawn = build_layers(name, [inputs], options, seed=2)
    assert drawn
    found = effective_matrix(mechanism, inputs)
    torch.testing.assert_close(found @ inputs.value.double(), attend(mechanism, inputs.double()))
    assert torch.equal(found, effective_matrix(mechanism, inputs))
    (other,), _ = build_layers(name, [inputs], options, seed=3)
    assert not torch.allclose(found, effective_matrix(other, inputs)), "another draw is another matrix"


def test_padded_keys_have_no_column(inputs):
    valid = torch.ones(2, LENGTH, dtype=torch.bool)
    valid[0, -6:] = False
    hidden = replace(inputs, key_valid=valid)
    for name in ("softmax", "linformer", "nystrom", "longformer"):
        found = matrix(name, hidden)
        assert found[0, :, :, -6:].eq(0).all(), name
        torch.testing.assert_close(found[1:], matrix(name, inputs)[1:], msg=f"{name}: the other sequence is as it was")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("delta_rule", "delta_rule has no effective attention matrix with these options, because its output is not linear"),
        ("gated_linear", "is not linear in the values"),
        ("fnet", "fnet has no effective attention matrix: its output must be A V"),
        ("convolution", "Choose a mechanism that treats all channels of a head alike"),
    ],
)
def test_what_has_no_matrix_is_refused_by_name(inputs, name, message):
    with pytest.raises(UnsupportedError, match=message):
        matrix(name, inputs)


def test_without_its_normalisation_a_recurrence_has_one(inputs):
    for name in ("delta_rule", "gated_linear"):
        found = matrix(name, replace(inputs, causal=True), normalise=False)
        assert found.triu(1).abs().max() < 1e-12


def test_facts_written_out():
    exact = torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    other = torch.tensor([[0.5, -0.5], [0.0, 2.0]], dtype=torch.float64)
    facts = matrix_facts(other, exact)
    assert (facts["row_sum_least"], facts["row_sum_mean"], facts["row_sum_most"]) == (0.0, 1.0, 2.0)
    assert (facts["negative"], facts["zero"]) == (0.25, 0.25)
    assert facts["distance"] == pytest.approx((2 / 1.5) ** 0.5)
    assert matrix_facts(exact, exact)["distance"] == 0
