"""Tables of regression and of several classes at once: figures, ties, averages, axes and differences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from make import make_record

from attn_zoo.leaderboard import rank, render
from attn_zoo.leaderboard.heatmap import heat_map
from attn_zoo.leaderboard.metrics import written
from attn_zoo.leaderboard.statistics import resolution
from attn_zoo.leaderboard.table import Table
from attn_zoo.records import RunRecord

PROBLEMS = {"mse": "regression", "r2": "regression", "f1_micro": "multi_label", "f1_macro": "multi_label"}
SCORES = {
    "mse": {"softmax": 0.00213, "linformer": 0.0512, "uniform": 0.164, "none": 0.167},
    "r2": {"softmax": 0.991, "linformer": 0.612, "uniform": 0.021, "none": -0.013},
    "f1_micro": {"softmax": 0.97, "linformer": 0.71, "uniform": 0.42, "none": 0.40},
}


def records(name: str) -> list[RunRecord]:
    card = {"metric": name, "problem": PROBLEMS[name], "classes": 1, "higher_is_better": name != "mse"}
    made = []
    for attention, score in SCORES[name].items():
        for seed in (1, 2, 3):
            test = score * (1 + 0.004 * seed)
            record = make_record(attention, "adding", seed, test=test, card=card, chance=-0.0002 if name == "r2" else 0.167)
            made.append(replace(record, scores={**record.scores, "train": test}))
    return made


def table(name: str) -> Table:
    (found,) = rank.tables(records(name))
    return found


@pytest.mark.parametrize("name", SCORES)
def test_the_first_row_is_the_best_and_the_other_is_worse(name):
    found = table(name)
    assert [row.attention for row in found.rows if not row.control] == ["softmax", "linformer"]
    assert [row.verdict for row in found.rows if not row.control] == ["best", "worse"]
    assert found.control == "uniform"


def test_scores_are_written_in_their_unit():
    assert [written(0.97512, name) for name in ("accuracy", "f1_macro", "r2")] == ["97.5 %"] * 3
    assert written(0.00213456, "mse") == "0.00213" and written(8.123, "perplexity") == "8.12"
    text = {name: render([table(name)], "github") for name in SCORES}
    assert (
        "mse |" in text["mse"] and "0.00215 ± 2.12e-05" in text["mse"] and "chance 0.167, best control uniform 0.165" in text["mse"]
    )
    assert "r2 (%)" in text["r2"] and "-1.3" in text["r2"] and "chance 0.0 %" in text["r2"]
    assert "f1_micro (%)" in text["f1_micro"]


def test_a_share_ties_below_a_point_and_an_error_below_one_per_cent():
    examples = {"test": {"examples": 100}}
    shares = resolution({"metric": "r2"}, examples)
    assert shares.ties(0.009, 0.02) and not shares.ties(0.011, 0.9) and shares.examples is None, "an R² is not a count"
    errors = resolution({"metric": "mse"}, examples)
    assert errors.ties(0.00002, 0.0025) and not errors.ties(0.00005, 0.0025) and errors.examples is None
    assert resolution({"metric": "f1_micro"}, examples).examples == 100


def test_the_heat_map_names_and_shades_every_metric():
    names = {"mse": "mse ↓", "r2": "R² %", "f1_micro": "micro F1 %"}
    for name, word in names.items():
        found = heat_map([table(name)])
        assert found.columns[0].metric == word
        cells = {line.attention: line.cells[0] for line in found.lines}
        assert cells["softmax"].shade == 1 and cells["uniform"].shade == 0
        linformer = cells["linformer"].shade
        assert linformer is not None and 0.3 < linformer < 0.8
    cell = heat_map([table("mse")]).lines[0].cells[0]
    assert (cell.text, cell.small) == ("0.0021", "±2e-05")
