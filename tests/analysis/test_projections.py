"""Error of projected attention: Eq. 7 and Theorem 1 of the Linformer paper, and fits that generalise."""

from __future__ import annotations

import math

import pytest
import torch

from attn_zoo.analysis import spectrum_of
from attn_zoo.analysis.inputs import AttentionInputs, random_inputs
from attn_zoo.analysis.projections import measure_projections, project, weights_of
from attn_zoo.contract import Geometry
from attn_zoo.registry import build_attention


def placed(sequences: int = 24, n: int = 32) -> AttentionInputs:
    """Return queries, keys and values that follow one random walk over the positions in all sequences, up to noise."""
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(3, 1, 2, n, 8, generator=generator).cumsum(dim=3)
    noise = 0.3 * torch.randn(3, sequences, 2, n, 8, generator=generator)
    return AttentionInputs(*(base + noise))


def test_projected_attention_is_that_of_the_linformer_with_the_same_matrices():
    inputs = random_inputs(2, 3, 16, 8).double()
    module = build_attention("linformer", Geometry(3, 8, 16, 16), projected_length=4, sharing="none").eval().double()
    weight = module.get_parameter("own_maps.0.weight").detach()
    ours = project(inputs, weight[0], weight[-1])
    torch.testing.assert_close(ours, module(inputs.query, inputs.key, inputs.value), rtol=1e-12, atol=1e-12)


def test_the_construction_of_theorem_1_falls_as_its_bound():
    found = measure_projections([random_inputs(8, 4, 128, 16)], [4, 8, 16, 32, 64], draws=8, steps=1)
    assert found["exponent"]["theorem"] == pytest.approx(-0.5, abs=0.05)
    expected = math.sqrt(128 / 64)  # for values without structure E‖P RᵀR V - P V‖² = (n + 1) / k ‖P‖² d, up to ‖P V‖²
    assert 0.5 * expected < found["error"]["theorem"][-1] < 2 * expected
    assert found["theorem_from"] == pytest.approx(min(5 * math.log(128) / (e**2 - e**3) for e in (0.66, 2 / 3, 0.68)))


def test_learned_projections_are_nearest_where_positions_have_structure():
    found = measure_projections([placed()], [8, 4], steps=150)
    assert found["k"] == [4, 8]
    for at in range(2):
        errors = {kind: found["error"][kind][at] for kind in found["error"]}
        assert errors["learned"] < errors["pooling"] < errors["random"]
        assert errors["learned"] < found["uniform"]


def test_shares_are_those_of_the_spectrum_of_the_measured_half():
    inputs = placed(8)
    found = measure_projections([inputs], [4, 8], draws=1, steps=1)
    spectrum = spectrum_of([[weights_of(inputs.double())[4:]]])
    assert found["share"] == [pytest.approx(float(spectrum.at(k).mean())) for k in (4, 8)]


@pytest.mark.parametrize(
    ("inputs", "lengths", "message"),
    [
        (random_inputs(1, 1, 8, 4), [2], "at least two"),
        (random_inputs(2, 1, 8, 4), [8], "1 to 7"),
        (random_inputs(2, 1, 8, 4), [], "none"),
        (random_inputs(2, 1, 8, 4, causal=True), [2], "must be bidirectional"),
    ],
)
def test_inputs_that_cannot_be_measured_are_refused(inputs, lengths, message):
    with pytest.raises(ValueError, match=message):
        measure_projections([inputs], lengths)
