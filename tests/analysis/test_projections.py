"""Error of projected attention: Eq. 7 and Theorem 1 of the Linformer paper, fits that generalise, and the command."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest
import torch

from attn_zoo.analysis import SpectrumAverage
from attn_zoo.analysis.error import exact_attention
from attn_zoo.analysis.inputs import AttentionInputs, random_inputs
from attn_zoo.analysis.projections import Kind, least_length, measure_projections, project, weights_of
from attn_zoo.cli import main
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


def test_with_the_identity_it_is_exact():
    inputs = random_inputs(2, 3, 16, 8).double()
    eye = torch.eye(16, dtype=torch.float64).expand(3, 16, 16)
    torch.testing.assert_close(project(inputs, eye, eye), exact_attention(inputs), rtol=1e-12, atol=1e-12)


def test_the_construction_of_theorem_1_falls_as_its_bound():
    found = measure_projections([random_inputs(8, 4, 128, 16)], [4, 8, 16, 32, 64], draws=8, steps=1)
    exponent = found.exponent(Kind.theorem)
    assert exponent is not None and exponent == pytest.approx(-0.5, abs=0.05)
    expected = math.sqrt(128 / 64)  # for values without structure E‖P RᵀR V - P V‖² = (n + 1) / k ‖P‖² d, up to ‖P V‖²
    weights = weights_of(random_inputs(8, 4, 128, 16).double())
    assert 0.5 * expected < found.mean(Kind.theorem)[-1] < 2 * expected and weights.shape == (8, 4, 128, 128)


def test_learned_projections_are_nearest_where_positions_have_structure():
    found = measure_projections([placed()], [4, 8], steps=150)
    for at in range(2):
        errors = {kind: found.mean(kind)[at] for kind in Kind}
        assert errors[Kind.learned] < errors[Kind.pooling] < errors[Kind.random]
        assert errors[Kind.learned] < found.uniform
    assert found.errors[Kind.random].shape == (2, 3, 1, 12, 2) and found.errors[Kind.learned].shape == (2, 1, 1, 12, 2)


def test_shares_are_those_of_the_spectrum_of_the_measured_half():
    inputs = placed(8)
    found = measure_projections([inputs], [4, 8], draws=1, steps=1)
    average = SpectrumAverage()
    average.add([weights_of(inputs.double())[4:]])
    for at, k in enumerate((4, 8)):
        torch.testing.assert_close(found.shares[at], average.result().at(k))


def test_the_bound_is_that_of_the_paper():
    assert least_length(512, 0.5) == pytest.approx(5 * math.log(512) / 0.125)
    with pytest.raises(ValueError, match=r"must be greater than 0 and less than 1"):
        least_length(512, 1.0)


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


def test_the_command_compares_models_in_one_picture(tmp_path, capsys):
    words = ["analyze", "projections", "--model", "task/listops", "task/listops", "--length", "16", "--sentences", "4"]
    assert main([*words, "--steps", "2", "--draws", "1", "--k", "2", "4", "--output", str(tmp_path), "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 2 * len(Kind) * 2 and {row["k"] for row in rows} == {"2", "4"}
    found = json.loads((tmp_path / "projections.json").read_text())
    assert [model["error"]["learned"] for model in found["models"]] == [found["models"][0]["error"]["learned"]] * 2
    assert {file.name for file in tmp_path.iterdir()} == {f"projections.{kind}" for kind in ("csv", "json", "png", "svg")}
    assert "$" not in (tmp_path / "projections.svg").read_text(encoding="utf-8"), "formulas of TeX are not set"
    assert main([*words, "--k", "2", "--steps", "0"]) == 2


def test_the_table_says_where_the_theorem_begins(capsys):
    assert main(["analyze", "projections", "--model", "task/listops", "--length", "16", "--sentences", "2", "--steps", "1"]) == 0
    printed = capsys.readouterr().out
    assert "gives no bound below k = 96" in printed and "share of singular values" in printed
