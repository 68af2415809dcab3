"""The heat map: what it holds, and that picture and terminal say the same in their room."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from make import make_record, records_of, stored, until_criterion
from page_data import text_of
from synthetic import TASKS, synthetic_records

from attn_zoo.cli.main import main
from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.heat_picture import heat_map_svg
from attn_zoo.leaderboard.heatmap import NOT_APPLICABLE, NOT_RUN, HeatMap, flops_column, gap, heat_map
from attn_zoo.leaderboard.overview import heat_map_text
from attn_zoo.records import RunRecord
from attn_zoo.terminal import COLUMNS

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def whole() -> HeatMap:
    """Sixty mechanisms and controls on sixteen tasks."""
    return heat_map(tables(synthetic_records()))


def _words(picture: str) -> str:
    """Text of a picture, with its lines joined."""
    return " ".join(re.sub("<[^>]*>", " ", picture).split())


def cell_of(found: HeatMap, name: str, task: str):
    at = [column.table.task["name"] for column in found.columns].index(task)
    return next(line for line in found.lines if line.attention == name).cells[at]


def test_every_mechanism_has_a_line_and_every_task_a_column(whole):
    assert len(whole.lines) == 60 and len(whole.columns) == len(TASKS)
    assert [line.attention for line in whole.lines[-4:]] == ["convolution", "frozen_random", "uniform", "none"]
    for _, lines in groupby(whole.lines, key=lambda line: line.group):
        kept = [at for at, column in enumerate(whole.columns) if not column.unshaded]
        shades = [fmean(line.cells[at].shade or 0 for at in kept if line.cells[at].row) for line in lines]
        assert shades == sorted(shades, reverse=True), "the greatest mean shade over the tasks that a line was run on comes first"


def test_an_empty_cell_does_not_count_and_lines_with_tasks_of_the_same_directions_stand_together():
    scores = {"softmax": (0.9, 0.9, 0.9), "linear": (0.6, 0.7, 0.9), "fnet": (None, 0.85, None), "mega": (None, None, 0.95)}
    scores |= {"luna": (0.8, 0.8, None), "uniform": (0.5, 0.5, 0.5)}
    records = [
        make_record(name, task, test=score, card={"causal": task == "c"})
        for name, of_tasks in scores.items()
        for task, score in zip("abc", of_tasks, strict=True)
        if score is not None
    ]
    found = heat_map(tables(records))
    assert [column.direction for column in found.columns] == ["bidirectional", "bidirectional", "causal"]
    assert [line.attention for line in found.lines] == ["softmax", "linear", "fnet", "luna", "mega", "uniform"]
    groups = [line.group for line in found.lines]
    assert groups == ["bidirectional and causal"] * 2 + ["bidirectional"] * 2 + ["causal", "controls"]


def test_a_mean_above_the_best_control_has_no_shade_if_the_verdict_is_that_it_is_no_better():
    scores = {"softmax": (0.9, 0.91, 0.92), "linear": (0.3, 0.4, 0.35), "uniform": (0.3, 0.31, 0.29)}
    (cell,) = next(line.cells for line in heat_map(tables(records_of(scores))).lines if line.attention == "linear")
    assert cell.row and cell.row.test and cell.row.test.mean > 0.34
    assert cell.row.verdict == "no better than the best control" and cell.shade == 0


def test_what_separates_nothing_is_not_shaded_and_says_why(whole):
    unshaded = {column.table.task["name"]: column.unshaded for column in whole.columns if column.unshaded}
    assert set(unshaded) == {"pixels"} and "no better than the best control" in str(unshaded["pixels"])
    assert "Not shaded: Pixels (CIFAR-10) (every mechanism is no better than the best control" in _words(heat_map_svg(whole))


def test_gaps_say_why(whole):
    picture = heat_map_svg(whole)
    assert cell_of(whole, "longformer", "qnli").row is None
    for name, task, word in (("fnet", "listops", "n/a"), ("topk", "retrieval", "OOM"), ("mega", "text", "time-out")):
        cell = cell_of(whole, name, task)
        assert cell.row is not None and cell.row.test is None and cell.shade is None and gap(cell) == word
        assert (f">{word}</text>" in picture) == (word != "n/a"), "cells that are not applicable are hatched"
    assert ">2/3</text>" in picture, "a row that lost a seed says so"


def test_cells_of_runs_until_the_criterion_say_how_soon_and_how_many_and_what_did_not_train():
    records = [*until_criterion("softmax", (900, 1250, 1300)), *until_criterion("linear", (700, None, None))]
    records += until_criterion("mega", (None,) * 3, at_cap=0.21, flat=True)
    records += until_criterion("uniform", (None,) * 3, at_cap=0.2, flat=True)
    found = heat_map(tables(records))
    cells = {line.attention: line.cells[0] for line in found.lines}
    assert {name: cell.small for name, cell in cells.items()} == {
        "softmax": "1.2k",
        "linear": "1/3",
        "mega": "",
        "uniform": "",
    }
    assert [name for name, cell in cells.items() if not cell.trained] == ["mega"], "of a control nobody expects that its loss falls"
    assert "median number of steps to 90 %" in _words(heat_map_svg(found)) and "font-style: italic" in heat_map_svg(found)


def test_of_several_settings_the_best_on_validation_is_shown():
    def runs(dial: int, valid: float, test: float) -> list[RunRecord]:
        made = make_record("linformer", test=test, spec_options={"dial": dial})
        return [replace(made, scores={**made.scores, "valid": valid})]

    records = [*runs(1, 0.80, 0.70), *runs(2, 0.75, 0.90), make_record("softmax", test=0.95), make_record("uniform", test=0.5)]
    found = heat_map(tables(records))
    assert [line.attention for line in found.lines] == ["softmax", "linformer", "uniform"]
    assert cell_of(found, "linformer", "digits").row.label == "linformer dial=1", "the choice does not see the test"
    assert found.several == ("linformer",) and "options, of which the best by validation score are shown: linformer" in " ".join(
        heat_map_text(found).split()
    )


@pytest.mark.parametrize("colours", [None, "truecolor"])
@pytest.mark.parametrize("tasks", [1, 2, 5, 12, 16])
def test_the_terminal_is_given_a_hundred_columns_at_most(tasks, colours):
    found = heat_map(tables(synthetic_records(tasks=tasks, mechanisms=20)))
    written = ESCAPES.sub("", heat_map_text(found, colours))
    assert max(map(len, written.splitlines())) <= COLUMNS
    blocks = sum(line.startswith("softmax ") for line in written.splitlines())
    assert blocks == 1 if tasks <= 5 else blocks <= 2, "columns stand side by side if they fit"
    titles = list(TASKS.values())[:tasks]
    assert all(title in written for title in titles), "short heads are explained"


@pytest.mark.parametrize(("tasks", "room"), [(2, True), (12, False)])
def test_the_terminal_explains_small_figures_only_if_it_has_room_for_them(tasks, room):
    written = heat_map_text(heat_map(tables(synthetic_records(tasks=tasks, mechanisms=20))))
    assert bool(re.search(r"±\d", written)) == room
    assert ("±: half of the 95 % interval" in written) == room
    written = heat_map_text(heat_map(tables(until_criterion("softmax", (900, None, 1300)))))
    assert "2/3" in written and "Small figures: the median number of steps" in written


def test_a_causal_task_is_not_applicable_to_a_mechanism_without_a_causal_form():
    records = [
        make_record("softmax"),
        make_record("softmax", "mqar", card={"causal": True}),
        make_record("nystrom"),
        make_record("linear"),
        make_record("2*linear+nystrom"),
        make_record("9999*linear+nystrom+"),  # a record may have a name that no hybrid can have
    ]
    found = heat_map(tables(records), not_causal=["nystrom"])
    gaps = {line.attention: [gap(cell) for cell in line.cells] for line in found.lines}
    never = {name: ["", NOT_APPLICABLE] for name in ("nystrom", "2*linear+nystrom", "9999*linear+nystrom+")}
    assert gaps == {"softmax": ["", ""], "linear": ["", NOT_RUN], **never}


def test_costs_are_those_of_the_records():
    def cost(count: int) -> dict[str, Any]:
        return {"counted": {"flops_per_example": 1000, "mechanism_flops_4096": count}}

    settings = [make_record("linformer", test=at / 10, spec_options={"dial": at}, **cost(10 * at)) for at in (3, 7, 5)]
    column = flops_column(tables([make_record("softmax", **cost(100)), *settings]))
    assert column is not None
    assert column.head == "FLOPs at 4,096" and column.values == {"softmax": 1, "linformer": 0.7}
    assert column.written("linformer") == "0.7×", "of the setting that the map shows"
    assert flops_column(tables([make_record("linformer", **cost(1))])) is None


def test_the_cost_of_a_mechanism_that_ran_in_both_directions_is_that_of_its_bidirectional_form_and_the_largest():
    def ran(task: str, causal: bool, **flops: int) -> list[RunRecord]:
        counts = {name: {"flops_per_example": 1000, "mechanism_flops_4096": count} for name, count in flops.items()}
        return [make_record(name, task, card={"causal": causal}, counted=count) for name, count in counts.items()]

    causal = ran("copying", True, softmax=100, linear=30, local=4)
    column = flops_column(tables([*causal, *ran("digits", False, softmax=100, linear=10)]))
    assert column is not None
    assert column.values == {"softmax": 1, "linear": 0.1, "local": 0.04}
    assert column.said.endswith("relative to softmax; for mechanisms run in both directions, of the bidirectional form")
    two = [*ran("digits", False, softmax=100, linear=10), *ran("listops", False, softmax=100, linear=20)]
    column = flops_column(tables(two))
    assert (
        column is not None
        and column.values["linear"] == 0.2
        and column.said.endswith("relative to softmax; if tasks differ, the largest")
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    stored(tmp_path / "runs", synthetic_records(mechanisms=8, tasks=3))
    return tmp_path


def test_the_command_writes_the_picture(folder, capsys):
    file = folder / "map.svg"
    words = ["leaderboard", "--records", str(folder / "runs"), "--format", "svg"]
    assert main([*words, "--output", str(file)]) == 0
    said = _words(file.read_text(encoding="utf-8"))
    assert "4 attention mechanisms on 3 tasks" in said
    assert main(words) == 0 and "<svg" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("format", "dots", "striped"),
    [
        ("svg", lambda text: text.count("<use"), None),
        ("html", lambda text: text_of(text).count(NOT_RUN), lambda text: text_of(text).splitlines().count("failed")),
    ],
)
def test_the_command_knows_which_mechanisms_have_no_causal_form(format, dots, striped, tmp_path):
    def written(name: str) -> str:
        stored(tmp_path / name, [make_record("softmax"), make_record("softmax", "mqar", card={"causal": True}), make_record(name)])
        file = tmp_path / f"{name}.{format}"
        assert main(["leaderboard", "--records", str(tmp_path / name), "--format", format, "--output", str(file)]) == 0
        return file.read_text(encoding="utf-8")

    without, other = written("nystrom"), written("linear")
    assert dots(without) == dots(other) - 1
    assert striped is None or striped(without) == striped(other) + 1


@pytest.mark.parametrize(("tasks", "whole"), [(2, True), (12, False)])
def test_long_names_are_whole_in_the_terminal_if_there_is_room(tasks, whole):
    hybrids = ["3*gated_delta_rule+softmax", "3*gated_delta_rule+linformer"]
    found = heat_map(tables([make_record(name, task) for name in ["softmax", *hybrids] for task in list(TASKS)[:tasks]]))
    written = heat_map_text(found)
    assert all((name in written) == whole for name in hybrids) and max(map(len, written.splitlines())) <= COLUMNS


def test_a_task_read_both_ways_and_causally_has_a_column_of_each():
    records = [
        make_record(name, "mqar", card={"causal": causal}, spec_task_options={"causal": causal})
        for name in ("softmax", "linear")
        for causal in (False, True)
    ]
    found = heat_map(tables(records))
    assert sorted(column.title for column in found.columns) == ["Mqar", "Mqar (causal)"]
    above, names = (line.split() for line in heat_map_text(found).splitlines()[:2])
    assert above == ["causal"] and names[:2] == ["mqar", "mqar"]
