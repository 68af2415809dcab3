"""``analyze matrix`` from end to end: printed output, written files and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from attn_zoo.analysis.effective import effective_matrix
from attn_zoo.analysis.feeding import build_layers
from attn_zoo.analysis.inputs import random_inputs
from attn_zoo.cli import main

SMALL = ("--length", "20", "--heads", "3", "--head-dim", "8")


def analyze(*words: str | Path | int) -> int:
    return main(["analyze", "matrix", *map(str, words)])


def test_the_matrix_that_is_written_is_the_one_of_the_head(tmp_path, capsys):
    words = [*SMALL, "--sentences", 2, "--sentence", 1, "--head", 2, "--seed", 4, "--output", tmp_path]
    assert analyze(*words, "--attention", "performer[features=16]") == 0
    assert "one random draw, seed 4" in capsys.readouterr().out
    inputs = random_inputs(2, 3, 20, 8, seed=4).sequence(1)
    (mechanism,), _ = build_layers("performer", [inputs], {"features": 16}, seed=4)
    (softmax,), _ = build_layers("softmax", [inputs], {})
    effective, exact = (np.load(tmp_path / f"{name}.npy") for name in ("effective", "exact"))
    torch.testing.assert_close(torch.from_numpy(effective), effective_matrix(mechanism, inputs)[0, 2])
    torch.testing.assert_close(torch.from_numpy(exact), effective_matrix(softmax, inputs)[0, 2])
    about = json.loads((tmp_path / "matrix.json").read_text(encoding="utf-8"))
    assert about["distance"] == pytest.approx(np.linalg.norm(effective - exact) / np.linalg.norm(exact))
    assert (about["label"], about["head"], about["sentence"], about["seed"]) == ("performer[features=16]", 2, 1, 4)
    assert about["row_sum_mean"] == pytest.approx(1.0)


@pytest.mark.docs
def test_the_picture(tmp_path):
    words = ["--inputs", "task/digits", "--layer", 1, "--attention", "nystrom", "--output", tmp_path]
    assert analyze(*words) == 0
    assert (tmp_path / "matrix.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "matrix.svg").read_bytes()
    assert b"<svg" in svg
    assert analyze(*words) == 0
    assert (tmp_path / "matrix.svg").read_bytes() == svg, "the same figure is the same file"


def test_controls_are_as_they_are_defined(capsys):
    assert analyze(*SMALL, "--attention", "none", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["row_sum_least"], found["row_sum_most"], found["negative"], found["zero"]) == (1.0, 1.0, 0.0, 0.95)
    assert found["seed"] is None and found["parameters"] == 0
    assert analyze(*SMALL, "--attention", "linformer[projected_length=8]") == 0
    out = capsys.readouterr().out
    assert "untrained: its 320 parameters have their initial values, seed 0" in out and "negative entries" in out
    assert analyze(*SMALL, "--attention", "softmax[sinks=true]") == 0
    assert capsys.readouterr().out.rstrip().endswith("untrained: its 3 parameters have their initial values"), "no number was drawn"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--attention", "linfromer"], "did you mean 'linformer'?"),
        (["--attention", "all"], "--attention must name one mechanism;"),
        (["--attention", "longformer[window=5|9]"], "--attention must name one mechanism;"),
        (["--attention", "linformer:sdpa"], "Leave out :sdpa"),
        (["--attention", "linear", "--head", "-1"], "--head must be at least 0"),
        (["--attention", "linear", "--head", "4"], "--head must be below 4, because it is counted from 0"),
        (["--attention", "linear", "--layer", "1"], "--layer must be below 1, because it is counted from 0"),
        (["--attention", "linear", "--sentence", "1"], "--sentence must be at least 0 and below --sentences="),
        (["--attention", "fnet"], "fnet has no effective attention matrix"),
        (["--attention", "linformer", "--causal"], "linformer has no causal form"),
        (["--attention", "linear", "--output", "blocked"], "blocked"),
    ],
)
def test_bad_input_and_what_has_no_matrix(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blocked").write_text("a file", encoding="utf-8")
    assert analyze("--length", 24, *words) == 2
    said = capsys.readouterr()
    assert message in said.err and said.out == ""
