"""``attn-zoo analyze`` from end to end: printed tables, written files, pictures, and readable messages for bad input."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from attn_zoo.tasks.parts.arrays import ArrayExamples

from attn_zoo.analysis import plots, sources
from attn_zoo.analysis.effective import effective_matrix
from attn_zoo.analysis.error import Reference
from attn_zoo.analysis.inputs import build_layers, random_inputs
from attn_zoo.analysis.projections import KINDS, measure_projections
from attn_zoo.cli import analyze as commands
from attn_zoo.cli import main
from attn_zoo.contract import Pairs, TaskSpec
from attn_zoo.plotting.theme import MUTED, SERIES
from attn_zoo.registry import attentions
from attn_zoo.rows import RowName

SMALL = ("--length", "32", "--heads", "2", "--head-dim", "8")


def analyze(*words: str | Path | int) -> int:
    return main(["analyze", *map(str, words)])


@pytest.fixture(autouse=True)
def short_training(monkeypatch) -> None:
    """Let projections learn for two steps; ``test_projections.py`` tests what they learn."""
    monkeypatch.setattr(commands, "measure_projections", partial(measure_projections, steps=2))


def written(folder: Path, *words: str | Path | int, pictures: bool = False) -> dict[str, Any]:
    """Run an analysis, and return the content of its JSON file. Its ``pictures`` are made, but not written unless asked for."""
    with pytest.MonkeyPatch.context() as patch:
        if not pictures:
            patch.setattr(plots, "save", lambda figure, *paths: list(paths))
        assert analyze(*words, "--output", folder) == 0
    return json.loads((folder / f"{words[0]}.json").read_text(encoding="utf-8"))


def errors_of(folder: Path, *words: str | int) -> dict[str, dict[str, Any]]:
    return {row["label"]: row for row in written(folder, "error", *SMALL, "--sentences", 2, *words)["rows"]}


@pytest.mark.parametrize(
    "words",
    [
        ["spectrum", "--model", "{digits}", "--sentences", "1"],
        ["error", "--inputs", "{digits}", "--sentences", "2", "--seeds", "1", "--attention", "uniform", "topk[kept=2|17]"],
        ["matrix", "--inputs", "{digits}", "--layer", "1", "--attention", "nystrom"],
        ["projections", "--model", "{digits}", "{digits}", "--sentences", "4", "--k", "2", "4"],
    ],
    ids=lambda words: words[0],
)
def test_pictures_are_drawn_and_the_same_figure_is_the_same_file(words, saved, tmp_path, capsys):
    words = [word.format(digits=saved("digits")) for word in words]
    for place in ("deep/one", "two"):
        written(tmp_path / place, *words, pictures=True)
    one, two = ((tmp_path / place / f"{words[0]}.svg").read_text(encoding="utf-8") for place in ("deep/one", "two"))
    assert one == two and "<svg" in one and "$" not in one, "formulas of TeX are not set"
    assert (tmp_path / "two" / f"{words[0]}.png").read_bytes().startswith(b"\x89PNG")
    assert f"{words[0]}.svg, {words[0]}.json" in capsys.readouterr().err


@pytest.mark.parametrize(("task", "length", "shape"), [("digits", (), (2, 2, 17)), ("listops", ("--length", 20), (2, 2, 21))])
def test_the_network_of_a_run_before_training_has_a_spectrum(task, length, shape, saved, tmp_path, capsys):
    found = written(tmp_path, "spectrum", "--model", saved(task), "--sentences", 2, "--format", "github", *length)
    curves = np.load(tmp_path / "spectrum.npy")
    assert curves.shape == shape and (np.diff(curves, axis=-1) >= 0).all() and (curves[..., -1] == 1).all()
    assert [layer["layer"] for layer in found["layers"]] == ["0", "1", "all"] and not found["trained"]
    assert "The model is untrained" in capsys.readouterr().out


def test_pairs_are_cut_and_padded_ones_left_out():
    valid = torch.ones(3, 2, 6, dtype=torch.bool)
    valid[0, 1, 3:] = False
    inputs = torch.arange(36).reshape(3, 2, 6)
    examples = ArrayExamples(inputs, torch.zeros(3, dtype=torch.long), valid)
    task: Any = SimpleNamespace(spec=TaskSpec(Pairs(40), 6, 2), card=SimpleNamespace(name="twos"), examples=lambda split: examples)
    found, words = sources._examples(task, 2, 4)
    assert torch.equal(torch.cat(found), inputs[1:, :, :4]) and words == "validation examples of twos cut to 4 tokens"


def test_projections_compare_models_and_say_where_the_theorem_begins(saved, tmp_path, capsys):
    words = ["projections", "--model", saved("listops"), saved("listops"), "--length", "16", "--sentences", "4"]
    found = written(tmp_path, *words)
    first, second = found["models"]
    assert first == second and set(first["error"]) == set(KINDS) and first["k"] == [1, 2, 4, 8]
    printed = capsys.readouterr().out
    assert printed.count("gives no bound below k = 96") == 2 and "share of singular values" in printed


def test_every_attention_is_compared_or_left_out_by_name(tmp_path):
    found = written(tmp_path, "error", *SMALL, "--sentences", 2, "--seeds", 1, pictures=True)
    named = [row["attention"] for row in found["rows"]] + [refused["attention"] for refused in found["refused"]]
    assert sorted(named) == list(attentions())
    assert all(refused["reason"] for refused in found["refused"])
    by_name = {row["attention"]: row for row in found["rows"]}
    assert by_name["softmax"]["error"] < 1e-12 and by_name["softmax"]["flops_share"] == 1
    assert by_name["uniform"]["error"] == found["uniform"] and by_name["uniform"]["of_uniform"] == 1
    assert "untrained" in by_name["linformer"]["notes"] and "untrained" in by_name["synthesizer_random"]["notes"]
    assert by_name["reformer"]["notes"] == "keys = queries" and by_name["reformer"]["tied_error"] is not None
    assert by_name["topk"]["notes"] == "" and by_name["uniform"]["notes"] == "control, reads no queries and no keys"
    assert "untrained (global_query" in by_name["longformer"]["notes"]


def test_errors_are_those_of_the_library_and_curves_have_a_dial(tmp_path):
    rows = errors_of(tmp_path, "--attention", "performer[features=8|64]", "nystrom[landmarks=2],nystrom[landmarks=4]", "--seeds", 2)
    assert [row["dial"] for row in rows.values()] == ["features", "features", "landmarks", "landmarks"]
    reference = Reference([random_inputs(2, 2, 32, 8)])
    for row in rows.values():
        again = reference.error(RowName(row["attention"], {row["dial"]: row["options"][row["dial"]]}), seeds=2)
        assert row == {**again, "dial": row["dial"]}


def test_inputs_follow_their_seed_and_scale(tmp_path):
    def uniform(*words: str) -> float:
        return errors_of(tmp_path, "--attention", "uniform", *words)["uniform"]["error"]

    base = uniform()
    assert uniform() == base != uniform("--seed", "1")
    assert uniform("--scale", "0.05") < 0.2 < base, "where scores are equal, softmax is the uniform average"


def test_causal_inputs_are_compared_with_causal_softmax_and_others_left_out(capsys):
    assert analyze("error", *SMALL, "--causal", "--attention", "longformer[window=65]", "linformer") == 0
    out = capsys.readouterr().out
    assert "linformer is left out: linformer has no causal form" in out
    (row,) = [line for line in out.splitlines() if line.startswith("longformer[window=65] ")]
    assert row.split()[1] == "0"
    assert "32 tokens, 2 heads of width 8, causal" in out


def test_a_model_and_its_table(saved, capsys):
    words = ["--inputs", saved("digits"), "--sentences", 2, "--format", "github", "--seeds", 1]
    assert analyze("error", *words, "--attention", "softmax", "topk[kept=2|17]", "linear", "reformer") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("softmax on digits, weights after 0 of" in line and ", 2 layers: 2 sequences" in line for line in lines)
    errors = [float(line.split("|")[2]) for line in lines if line.startswith("| ") and "error" not in line]
    assert errors == sorted(errors) and any("keys = queries: " in line for line in lines)


def test_the_figure_draws_zeros_and_its_legend_names_what_has_a_colour(tmp_path, monkeypatch):
    facts = ("label", "attention", "dial", "options", "control", "error", "flops", "notes")
    rows = [
        ("softmax", "softmax", None, {}, False, 0.0, 1000, ""),
        ("a k=1", "a", "k", {"k": 1}, False, 1.0, 100, ""),
        ("a k=2", "a", "k", {"k": 2}, False, 0.5, 400, ""),
        ("b", "b", None, {}, True, 2.0, 0, "untrained (3 parameters)"),
        ("c", "c", None, {}, False, 1e-16, 300, ""),
        ("d", "d", None, {}, False, 0.9, 300, ""),
    ]
    found = {"uniform": 0.8, "softmax": {"flops": 1000}, "rows": [dict(zip(facts, row, strict=True)) for row in rows]}
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "_NAMED", 2)
    monkeypatch.setattr(plots, "save", lambda figure, *paths: drawn.append(figure))
    plots.plot_error(found, tmp_path, title="made up")
    ((figure,), (axes,)) = (drawn, drawn[0].axes)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    points = {gid: line for line in axes.lines if (gid := line.get_gid())}
    assert set(points) == {"title:a k=1: 1", "title:a k=2: 0.5", "title:b: 2", "title:c: 1e-16", "title:d: 0.9"}
    assert all(left < x < right and low < y < high for line in points.values() for x, y in line.get_xydata())
    (legend,) = figure.legends
    named = ["c", "a, k 1 to 2", "other mechanisms", "control", "hollow: untrained", "exact to rounding"]
    assert [text.get_text() for text in legend.get_texts()] == [*named, "none: no matrix product is made"]
    colours = [points[f"title:{name}"].get_color() for name in ("c: 1e-16", "a k=1: 1", "a k=2: 0.5", "b: 2", "d: 0.9")]
    assert colours == [SERIES[0], SERIES[1], SERIES[1], MUTED, MUTED]
    figure.draw_without_rendering()
    frame = legend.get_window_extent()
    assert frame.x1 <= figure.bbox.x1 and frame.y0 >= 0, "the legend is inside the picture"


def test_the_matrix_that_is_written_is_the_one_of_the_head(tmp_path, capsys):
    about = written(tmp_path, "matrix", *SMALL, "--head", 1, "--seed", 4, "--attention", "performer[features=16]")
    assert "one random draw, seed 4" in capsys.readouterr().out
    inputs = random_inputs(1, 2, 32, 8, seed=4)
    (mechanism,), _ = build_layers("performer", [inputs], {"features": 16}, seed=4)
    (softmax,), _ = build_layers("softmax", [inputs], {})
    effective, exact = (np.load(tmp_path / f"{name}.npy") for name in ("effective", "exact"))
    torch.testing.assert_close(torch.from_numpy(effective), effective_matrix(mechanism, inputs)[0, 1])
    torch.testing.assert_close(torch.from_numpy(exact), effective_matrix(softmax, inputs)[0, 1])
    assert about["distance"] == pytest.approx(np.linalg.norm(effective - exact) / np.linalg.norm(exact))
    assert (about["label"], about["head"], about["seed"]) == ("performer[features=16]", 1, 4)
    assert about["row_sum_mean"] == pytest.approx(1.0)


def test_controls_have_the_matrices_of_their_definitions_and_initial_weights_are_said(tmp_path, capsys):
    found = written(tmp_path, "matrix", *SMALL, "--length", 20, "--attention", "none")
    assert (found["row_sum_least"], found["row_sum_most"], found["negative"], found["zero"]) == (1.0, 1.0, 0.0, 0.95)
    assert found["seed"] is None and found["parameters"] == 0
    untrained = {"linformer[projected_length=8]": "512 parameters have their initial values, seed 0"}
    untrained["softmax[sinks=true]"] = "2 parameters have their initial values"
    for row, words in untrained.items():
        assert analyze("matrix", *SMALL, "--attention", row) == 0
        assert capsys.readouterr().out.rstrip().endswith(f"untrained: its {words}"), "no seed if no number was drawn"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("spectrum --model nowhere/at-all", "there is no folder 'nowhere/at-all'. Give minilm, timm/NAME"),
        ("spectrum --model {digits} --text x.txt", "because this model reads its task's own examples. Leave --text out"),
        ("spectrum --model {digits} --length 4", "--length cannot be used with digits"),
        ("spectrum --model {digits} --weights random", "already holds the weights of a run. Leave --weights out"),
        ("spectrum --model {digits} --sentences 5000", "got 5000. Choose a smaller --sentences"),
        ("spectrum --model {digits} --sentences 0", "sequences must be at least 1"),
        ("spectrum --model {listops} --length 65", "--length must be at most 64"),
        ("spectrum --model timm/test_vit", "--weights must be given with timm/test_vit"),
        ("spectrum --model timm/vit_tinny --weights random", "timm could not build vit_tinny"),
        ("spectrum --model timm/test_vit --text x.txt", "because this model reads images"),
        ("spectrum --model timm/test_vit --length 9", "gets its number of positions from its image size"),
        ("spectrum --model {digits} --output blocked", "blocked"),
        ("projections --model {digits} --sentences 1", "at least two sequences"),
        ("error --attention linfromer", "did you mean 'linformer'?"),
        ("error --attention linear linear", "twice"),
        ("error --attention performer[feature=4]", "did you mean 'features'?"),
        ("error --attention performer[features=0]", "performer.features"),
        ("error --attention performer[features=8|8]", "performer[features=8] is named twice"),
        ("error --attention linformer:triton", "Leave out :triton"),
        ("error --seeds 0", "--seeds must be an integer >= 1"),
        ("error --scale 0", "scale must be positive, because it is the standard deviation"),
        ("error --heads 0", "heads must be at least 1, because it is a count"),
        ("error --sentences 0", "sequences must be at least 1, because it is a count"),
        ("error --text x.txt", "--text can be given only with a model"),
        ("error --weights random", "--weights can be given only with a model"),
        ("error --inputs {digits} --heads 2", "--heads can be given only with random inputs"),
        ("error --inputs {digits} --causal", "--causal can be given only with random inputs"),
        ("matrix --attention all", "--attention must name one mechanism;"),
        ("matrix --attention longformer[window=5|9]", "--attention must name one mechanism;"),
        ("matrix --attention linear --head -1", "--head must be from 0 to 3, because it is counted from 0"),
        ("matrix --attention linear --layer 1", "--layer must be from 0 to 0, because it is counted from 0"),
        ("matrix --attention fnet --length 24", "fnet has no effective attention matrix"),
        ("matrix --attention linformer --causal", "linformer has no causal form"),
    ],
)
def test_bad_input_is_refused_in_words_before_the_work(words, message, saved, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blocked").write_text("a file", encoding="utf-8")
    monkeypatch.setattr(Reference, "error", lambda *_, **__: pytest.fail("work was begun"))
    names = {name: str(saved(name)) for name in ("digits", "listops") if f"{{{name}}}" in words}
    assert analyze(*words.format(**names).split()) == 2
    said = capsys.readouterr()
    *progress, error = said.err.splitlines()
    assert message in error and said.out == "", error
    assert all(line.startswith(("loading ", "queries")) for line in progress), "one line, after progress at most"


def test_when_all_refuse_nothing_is_printed(capsys):
    assert analyze("error", *SMALL, "--causal", "--attention", "linformer", "fnet") == 2
    said = capsys.readouterr()
    assert said.out == "" and "linformer has no causal form" in said.err and "fnet has no causal form" in said.err
