"""Scores against cost as curves: what is joined, what each panel holds, and that its names stand clear of each other."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
from make import make_record
from matplotlib.figure import Figure
from synthetic import dialled_records

from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.cli.layers import layer_axes
from attn_zoo.cli.main import main
from attn_zoo.count.rigs import Subject
from attn_zoo.leaderboard import Table, tables
from attn_zoo.leaderboard.page import html_page
from attn_zoo.leaderboard.plots import draw, tradeoffs
from attn_zoo.leaderboard.plots.axes import MECHANISM, RECORDED
from attn_zoo.leaderboard.plots.style import style_of
from attn_zoo.leaderboard.plots.tradeoff import CURVES, PANELS, columns_of, curves_of, draw_tradeoff, log_ticks, size_of
from attn_zoo.plotting.labels import overlap
from attn_zoo.plotting.theme import SERIES, settings
from attn_zoo.records import ModelSpec, RunRecord, Tuning

FLOPS = RECORDED["FLOPs"]


@pytest.fixture(scope="module")
def nine() -> list[Table]:
    """Five mechanisms over five settings each on nine tasks, one of them scored by perplexity."""
    return tables(dialled_records())


def drawn(found: list[Table]):
    """A figure of the tables, and its panels."""
    with matplotlib.rc_context(settings("tradeoff", outlined=False)):
        columns = columns_of(len(found))
        figure = Figure(figsize=size_of(len(found), columns))
        draw_tradeoff(figure, [(table, FLOPS) for table in found], columns, style_of(found), 0.96)
    return figure, figure.axes


def dialled(name: str, flops: int, test: float, **changes) -> RunRecord:
    return make_record(name, test=test, spec_options={"dial": flops}, counted={"flops_per_example": flops}, **changes)


def test_a_curve_joins_the_settings_of_a_mechanism_by_ascending_cost():
    records = [dialled("linformer", flops, test) for flops, test in ((300, 0.9), (100, 0.5), (200, 0.8))]
    records += [dialled("performer", 100, 0.6), dialled("uniform", 50, 0.1), dialled("uniform", 60, 0.2)]
    (table,) = tables(records)
    (curve,) = curves_of(table, FLOPS)
    assert curve.name == "linformer" and [row.flops_per_example for row in curve.rows] == [100, 200, 300]
    assert curve.varied == "dial 100 to 300"
    assert curves_of(table, RECORDED["memory"]) == [], "all rows took the same memory"


def test_heads_make_a_curve_as_a_hyperparameter_does():
    records = [dialled("linear", 100 * heads, 0.9 - heads / 100, spec_model=ModelSpec(heads=heads)) for heads in (1, 4, 2)]
    (table,) = tables([replace(r, spec=replace(r.spec, options={})) for r in records])
    (curve,) = curves_of(table, FLOPS)
    assert curve.varied == "heads 1 to 4" and [row.heads for row in curve.rows] == [1, 2, 4]


def tuned(flops: int, test: float, *more: str) -> RunRecord:
    space = dict.fromkeys(("budget.learning_rate", *more), "choice(1,2)")
    study = Tuning(f"study{flops}", space, trials=2, failed=0, best_trial=1, best_valid=test, seed=0)
    return dialled("linformer", flops, test, tuning=study)


def test_settings_may_each_be_tuned_but_no_searched_hyperparameter_is_a_point():
    (table,) = tables([tuned(100, 0.8), tuned(200, 0.8), tuned(300, 0.9, "attention.dial")])
    assert len(table.rows) == 3
    (curve,) = curves_of(table, FLOPS)
    assert curve.name == "linformer" and [row.flops_per_example for row in curve.rows] == [100, 200]
    (picture,) = [p for p in tradeoffs([table]) if p.along == "FLOPs"]
    assert "each setting has its own budget.learning_rate, chosen on validation" in picture.caption


def test_what_failed_is_not_joined_and_a_named_implementation_has_its_own_curve():
    plain = [dialled("linformer", 100, 0.5), dialled("linformer", 200, 0.8), dialled("linformer", 300, 0.9, status="diverged")]
    named = [replace(r, spec=replace(r.spec, implementation="sdpa"), implementation="sdpa") for r in plain[:2]]
    (table,) = tables([*plain, *named])
    curves = {curve.name: curve for curve in curves_of(table, FLOPS)}
    assert set(curves) == {"linformer", "linformer (sdpa)"}
    assert all([row.flops_per_example for row in curve.rows] == [100, 200] for curve in curves.values())


def test_of_many_curves_those_of_the_best_rows_are_drawn():
    records = [dialled(f"m{at:02}", flops, at / 100 + flops / 1e6) for at in range(20) for flops in (100, 200)]
    found = curves_of(tables(records)[0], FLOPS)
    assert len(found) == CURVES and {curve.attention for curve in found} == {f"m{at:02}" for at in range(12, 20)}


def test_each_task_has_a_panel_on_a_logarithmic_axis_with_a_few_round_ticks(nine):
    _, panels = drawn(nine)
    assert [axes.get_title(loc="left") for axes in panels] == [table.task["title"] for table in nine]
    for axes in panels:
        assert axes.get_xscale() == "log"
        low, high = axes.get_xlim()
        assert 3 <= sum(low <= tick <= high for tick in axes.get_xticks()) <= 8


def test_up_is_better_in_every_panel(nine):
    _, panels = drawn(nine)
    for axes, table in zip(panels, nine, strict=True):
        low, high = axes.get_ylim()
        assert (low < high) == table.higher_is_better
        assert ("axis turned" in axes.get_ylabel()) != table.higher_is_better
    assert {table.higher_is_better for table in nine} == {True, False}


def test_a_panel_holds_every_score_the_line_of_softmax_and_the_band_of_the_best_control(nine):
    _, panels = drawn(nine)
    table, axes = nine[0], panels[0]
    held = {(round(float(x), 6), round(float(y), 6)) for line in axes.lines for x, y in line.get_xydata()}
    for curve in curves_of(table, FLOPS):
        for row in curve.rows:
            assert row.test and (row.flops_per_example, round(100 * row.test.mean, 6)) in held, f"{row.label} is not drawn"
    softmax = next(row for row in table.rows if row.attention == "softmax")
    control = next(row for row in table.rows if row.label == table.control)
    assert softmax.test and control.test and control.test.half_width
    levels = {round(float(line.get_ydata()[0]), 6) for line in axes.lines if list(line.get_xdata()) == [0, 1]}
    assert levels == {round(100 * softmax.test.mean, 6), round(100 * control.test.mean, 6)}
    edges = {round(float(y), 6) for patch in axes.patches for y in (patch.get_y(), patch.get_y() + patch.get_height())}
    half = control.test.half_width
    assert edges == {round(100 * (control.test.mean - half), 6), round(100 * (control.test.mean + half), 6)}


@pytest.mark.parametrize("tasks", [1, 2, 4, 9])
def test_no_name_covers_another_or_leaves_the_figure(nine, tasks):
    figure, panels = drawn(nine[:tasks])
    boxes = {}
    for number, axes in enumerate(panels):
        frame = axes.get_window_extent()
        for note in axes.texts:
            extent = note.get_window_extent()
            assert frame.x1 < extent.x0 and extent.x1 <= figure.bbox.x1, f"{note.get_text()!r} stands in a panel or beyond the edge"
            boxes[number, note.get_text()] = (extent.x0, extent.y0, extent.x1, extent.y1)
        assert {"softmax", "linformer", "topk", "uniform (c)"} <= {note.get_text() for note in axes.texts}
    frames = [(f.x0, f.y0, f.x1, f.y1) for f in (axes.get_window_extent() for axes in panels)]
    for one, other in itertools.combinations(boxes, 2):
        assert not overlap(boxes[one], boxes[other]), f"{one} and {other} are written over each other"
    assert not any(overlap(box, frame) for box in boxes.values() for frame in frames)


def test_curves_differ_in_colour_and_shape(nine):
    style = style_of(nine)
    names = {curve.attention for table in nine for curve in curves_of(table, FLOPS)}
    assert len({style.colours[name] for name in names}) == len({style.shapes[name] for name in names}) == len(names) == 5
    many = tables([dialled(f"m{at:02}", flops, 0.5) for at in range(36) for flops in (1, 2)])
    looks = style_of(many)
    assert len({(looks.colours[name], looks.shapes[name]) for name in looks.shapes if name != "softmax"}) == 36


def test_mechanisms_with_curves_are_the_first_to_get_colours():
    records = [make_record(name) for name in ("aa", "bb", "cc", "dd", "ee", "ff", "gg")]
    records += [dialled(name, flops, 0.5) for name in ("yy", "zz") for flops in (1, 2)]
    style = style_of(tables(records))
    assert (style.colours["yy"], style.colours["zz"]) == SERIES[:2]


def test_figures_hold_nine_tasks_each_and_say_what_varies(nine):
    found = [picture for picture in tradeoffs(nine) if picture.along == "FLOPs"]
    assert [picture.name for picture in found] == ["tradeoff-flops"] and len(found[0].tables) == PANELS
    assert "linformer: projected_length 8 to 128" in found[0].caption and "3 seeds" in found[0].caption
    more = tables(dialled_records(tasks=11, seeds=1))
    names = {picture.name: len(picture.tables) for picture in tradeoffs(more)}
    assert names["tradeoff-flops-1"] == PANELS and names["tradeoff-flops-2"] == 2
    assert {picture.axis for picture in tradeoffs(more) if picture.along == "FLOPs"} == {
        "forward FLOPs, tasks 1 to 9",
        "forward FLOPs, tasks 10 to 11",
    }


def test_single_settings_make_no_such_figure():
    assert list(tradeoffs(tables([make_record("softmax"), make_record("linformer")]))) == []


def test_the_figures_are_written_as_files_and_stand_in_the_page(tmp_path):
    records = [replace(r, source=f"{at}.json") for at, r in enumerate(dialled_records(tasks=2, seeds=2))]
    found = tables(records)
    names = {path.name for path in draw(found, tmp_path)}
    assert {"tradeoff-flops.svg", "tradeoff-flops.png", "tradeoff-time.svg", "tradeoff-memory.svg"} <= names
    assert "tradeoff-parameters.svg" not in names, "no setting changes the parameters"
    page = html_page(found, records)
    top = page[page.index('<section id="overview">') : page.index('<section id="mqar"')]
    assert top.count('<figure class="plot wide"') == 3 + 3 and 'data-axis="peak memory"' in top
    assert "grey band: the best control" in top


@pytest.mark.parametrize(("low", "high"), [(1.9e6, 2.4e6), (2e6, 1e7), (1.0, 1e6), (0.3, 0.5)])
def test_ticks_are_round_few_and_within(low, high):
    ticks = log_ticks(low, high)
    assert ticks == sorted(ticks) and all(low <= tick <= high for tick in ticks)
    assert 2 <= len(ticks) <= 8


def measured(file: Path, **changes) -> Path:
    """A measurement of linformer at two projected lengths, two lengths, and two and eight heads, 3 rounds each."""
    found = Measurement(
        "growth",
        {"dim": 64, "heads": 2},
        None,
        {"cpu": "this processor", "gpu": None, "threads": 2, "torch": "2.15"},
        complete=True,
    )
    for heads, k, length, kind in itertools.product(("", "8"), (8, 16), (1024, 4096), ("forward", "training")):
        options = {"projected_length": k, "sharing": "headwise"}
        cell = Cell(f"linformer[projected_length={k}]", kind, length, group=heads, subject=Subject("linformer", options))
        slow = 3 if heads else 1
        found.of(cell).values = {"seconds": [slow * k * length / 1e6, 0.5, k * length / 1e7], "peak_bytes": [k * length * 1024]}
    found.write(file)
    if changes:
        file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), **changes}), encoding="utf-8")
    return file


def test_measured_costs_of_a_layer_are_axes_at_each_length(tmp_path):
    axes = {axis.name: axis for axis in layer_axes(measured(tmp_path / "layers.json"))}
    assert list(axes) == ["time-1024", "memory-1024", "time-4096", "memory-4096"]
    records = [
        make_record(
            "linformer", test=k / 20, spec_options={"projected_length": k, "dropout": 0.0}, counted={"mechanism_flops_4096": k}
        )
        for k in (8, 16, 32)
    ]
    (table,) = tables([*records, make_record("performer")])
    by_k = {row.options.get("projected_length"): row for row in table.rows}
    assert axes["time-4096"].of(by_k[8]) == pytest.approx(1e3 * 8 * 4096 / 1e6), "the median of three rounds, in ms"
    assert axes["memory-1024"].of(by_k[16]) == pytest.approx(16), "MiB"
    assert axes["time-4096"].of(by_k[32]) is None and axes["time-4096"].of(by_k[None]) is None, "not measured"
    assert MECHANISM.of(by_k[8]) == 8
    two, eight = (replace(records[0].spec, model=ModelSpec(heads=heads)) for heads in (2, 8))
    (varied,) = tables([records[0], replace(records[0], spec=two), replace(records[0], spec=eight)])
    of = {row.heads: axes["time-4096"].of(row) for row in varied.rows}
    milliseconds = 1e3 * 8 * 4096 / 1e6
    assert of == {2: pytest.approx(milliseconds), 4: None, 8: pytest.approx(3 * milliseconds)}, (
        "layers with two and eight heads are measured"
    )
    (picture,) = [p for p in tradeoffs([table], list(axes.values())) if p.name == "tradeoff-layer"]
    assert picture.size == size_of(5, 3) and "width 64 with 2 heads" in picture.caption and "this processor" in picture.caption


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experiment": "cost"}, "of attn-zoo measure experiment=growth wrote"),
        ({"complete": False}, "not finished"),
        ({"cells": None}, "not a complete"),
    ],
)
def test_other_measurements_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        layer_axes(measured(tmp_path / "layers.json", **changes))


def test_layers_are_of_plots(tmp_path, capsys):
    assert main(["leaderboard", "--records", str(tmp_path), "--layers", "x.json"]) == 2
    assert "--plots FOLDER" in capsys.readouterr().err
