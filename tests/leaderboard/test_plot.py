"""Scores against a cost: what a curve joins, what a panel holds, and what is written as files."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from make import make_record
from matplotlib.backends.backend_agg import FigureCanvasAgg
from synthetic import dialled_records

from attn_zoo.leaderboard import Table, tables
from attn_zoo.leaderboard.plot import AXES, curves_of, draw, panels_of, plot_svg
from attn_zoo.records import RunRecord, Tuning

FLOPS = AXES["FLOPs"]


@pytest.fixture(scope="module")
def nine() -> list[Table]:
    """Five mechanisms over five settings each on nine tasks, one of them scored by perplexity."""
    return tables(dialled_records())


@pytest.fixture
def figure(monkeypatch):
    """Function that returns the figure of some panels."""

    def drawn(panels):
        kept: list[Any] = []

        def keep(figure: Any) -> str:
            kept.append(figure)
            return "<svg></svg>"

        monkeypatch.setattr("attn_zoo.leaderboard.plot.svg_text", keep)
        plot_svg(panels)
        return kept[0]

    return drawn


def dialled(name: str, flops: int, test: float, **changes) -> RunRecord:
    return make_record(name, test=test, spec_options={"dial": flops}, counted={"flops_per_example": flops}, **changes)


def test_a_curve_joins_the_settings_of_a_mechanism_by_ascending_cost():
    records = [dialled("linformer", flops, test) for flops, test in ((300, 0.9), (100, 0.5), (200, 0.8))]
    records += [dialled("performer", 100, 0.6), dialled("uniform", 50, 0.1), dialled("uniform", 60, 0.2)]
    (table,) = tables(records)
    found = {rows[0].attention: [row.flops_per_example for row in rows] for rows in curves_of(table, FLOPS)}
    assert found == {"linformer": [100, 200, 300], "performer": [100]}, "a control is a band, not a curve"


def tuned(flops: int, test: float, *more: str) -> RunRecord:
    space = dict.fromkeys(("budget.learning_rate", *more), "choice(1,2)")
    study = Tuning(f"study{flops}", space, trials=2, failed=0, best_trial=1, best_valid=test, seed=0)
    return dialled("linformer", flops, test, tuning=study)


def test_settings_may_each_be_tuned_but_a_searched_hyperparameter_is_a_point_of_its_own():
    (table,) = tables([tuned(100, 0.8), tuned(200, 0.8), tuned(300, 0.9, "attention.dial")])
    assert [[row.flops_per_example for row in rows] for rows in curves_of(table, FLOPS)] == [[100, 200], [300]]
    assert "budget.learning_rate, chosen on" in _words(plot_svg([(table, FLOPS)]))


def _words(svg: str) -> str:
    """Texts of a picture, in one line."""
    return " ".join("".join(part.partition(">")[2] for part in svg.split("<")).split())


def test_a_failed_row_is_not_joined_and_a_named_implementation_has_its_own_curve():
    plain = [dialled("linformer", 100, 0.5), dialled("linformer", 200, 0.8), dialled("linformer", 300, 0.9, status="diverged")]
    named = [replace(r, spec=replace(r.spec, implementation="sdpa"), implementation="sdpa") for r in plain[:2]]
    (table,) = tables([*plain, *named])
    curves = curves_of(table, FLOPS)
    assert sorted(rows[0].block.measured_as for rows in curves) == ["auto", "sdpa"]
    assert all([row.flops_per_example for row in rows] == [100, 200] for rows in curves)


def test_a_panel_holds_every_score_the_line_of_softmax_and_the_band_of_the_best_control(nine, figure):
    panels = figure(panels_of(nine, [FLOPS])).axes
    assert [axes.get_title(loc="left") for axes in panels] == [table.task["title"] for table in nine]
    table, axes = nine[0], panels[0]
    held = {(round(float(x), 6), round(float(y), 6)) for line in axes.lines for x, y in line.get_xydata()}
    for row in (row for rows in curves_of(table, FLOPS) for row in rows):
        assert row.test and (row.flops_per_example, round(100 * row.test.mean, 6)) in held, f"{row.label} is not drawn"
    softmax, control = next(row for row in table.rows if row.attention == "softmax"), table.control_row
    assert softmax.test and control and control.test
    levels = {round(float(line.get_ydata()[0]), 6) for line in axes.lines if list(line.get_xdata()) == [0, 1]}
    assert levels == {round(100 * softmax.test.mean, 6), round(100 * control.test.mean, 6)}
    (band,) = [patch for patch in axes.patches if patch.get_alpha() == 0.2]
    low, high = band.get_y(), band.get_y() + band.get_height()
    assert (low, high) == pytest.approx((100 * control.test.low, 100 * control.test.high))


def test_up_is_better_in_every_panel_and_ticks_are_few(nine, figure):
    for axes, table in zip(figure(panels_of(nine, [FLOPS])).axes, nine, strict=True):
        low, high = axes.get_ylim()
        assert (low < high) == table.higher_is_better
        assert ("axis turned" in axes.get_ylabel()) != table.higher_is_better
        left, right = axes.get_xlim()
        assert 2 <= sum(left <= tick <= right for tick in axes.get_xticks()) <= 8
    assert {table.higher_is_better for table in nine} == {True, False}


def test_a_front_is_drawn_in_each_implementation_group_if_the_cost_is_measured(figure):
    records = [
        make_record(name, seed=seed, test=test, counted={"flops_per_example": cost}, measured={"train_seconds": float(cost)})
        for name, cost, test in (("softmax", 9, 0.9), ("linear", 2, 0.6), ("local", 1, 0.2), ("mega", 5, 0.5))
        for seed in (1, 2)
    ]
    kernels = [
        replace(r, spec=replace(r.spec, implementation=kind), implementation=kind, measured={"train_seconds": 10.0 + at})
        for at, kind in enumerate(("sdpa", "flex", "triton", "fla", "tiled"))
        for r in records[:2]
    ]
    (table,) = tables([*records, *kernels])

    def fronts(axis):
        (axes,) = figure([(table, axis)]).axes
        return [line.get_xydata().tolist() for line in axes.lines if line.get_drawstyle() == "steps-post"]

    (front,) = fronts(FLOPS)
    assert front == [[1, 20], [2, 60], [9, pytest.approx(90)]], "mega is dearer than linear and worse"
    ends = [row.train_seconds for rows in curves_of(table, AXES["time"]) for row in rows if row.attention == "softmax"]
    assert [front[-1][0] for front in fronts(AXES["time"])] == ends, (
        "in the order of the rows, so that equal records give equal files"
    )
    assert len(ends) == 6
    failed = make_record("linear", seed=3, status="diverged", counted={"flops_per_example": 2})
    slow = replace(records[0], measured={"train_seconds": 9.0, "step_seconds_median": 1.0})
    slower = replace(records[1], measured={"train_seconds": 9.0, "step_seconds_median": 2.0})
    (table,) = tables([slow, slower, *records[2:], failed])
    (front,) = fronts(FLOPS)
    assert [1, 20] in front and [2, 60] not in front, "linear has a failed seed"
    assert fronts(AXES["time"]) == [], "the steps of softmax took twice as long with one seed"


@pytest.mark.parametrize("tasks", [1, 3, 9])
def test_no_text_covers_another_or_leaves_the_picture(nine, figure, tasks):
    found = figure(panels_of(nine[:tasks], [FLOPS]))
    texts = [*found.texts, *(text for legend in found.legends for text in legend.get_texts())]
    texts += [text for axes in found.axes for text in (axes.xaxis.label, axes.yaxis.label, *axes.texts)]
    FigureCanvasAgg(found).draw()
    boxes = [text.get_window_extent() for text in texts]
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= found.bbox.x1 and box.y1 <= found.bbox.y1 for box in boxes)
    assert not any(one.padded(-1).overlaps(other.padded(-1)) for one, other in itertools.combinations(boxes, 2))


@pytest.mark.docs
def test_pictures_are_the_same_for_the_same_tables(tmp_path):
    found = tables(dialled_records(tasks=1, seeds=1))
    for folder in ("one", "two"):
        draw(found, tmp_path / folder)
    assert list((tmp_path / "one").glob("cost-*.svg"))
    for path in (tmp_path / "one").glob("*.svg"):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), f"{path.name} differs between two drawings"
