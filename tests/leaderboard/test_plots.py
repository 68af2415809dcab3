"""Figures: all that can be drawn is, nothing is written over anything else, and the same tables make the same files."""

from __future__ import annotations

import itertools
from dataclasses import replace

import matplotlib
import pytest
from make import make_record
from matplotlib.figure import Figure

from attn_zoo.leaderboard import Table, tables
from attn_zoo.leaderboard.heat_costs import measured_columns, recorded_columns
from attn_zoo.leaderboard.heatmap import heat_map
from attn_zoo.leaderboard.plots import draw, overall, overalls, pictures, svg
from attn_zoo.leaderboard.plots.cost import draw_cost
from attn_zoo.leaderboard.plots.curves import DRAWN, curves_of, draw_curves
from attn_zoo.leaderboard.plots.style import SIZE, style_of
from attn_zoo.plotting.labels import apart, folded, overlap
from attn_zoo.plotting.theme import DARK, INK, MUTED, PAPER, SERIES, settings
from attn_zoo.records import RunRecord

SCORES = {"softmax": 0.82, "linformer": 0.81, "performer": 0.80, "longformer": 0.81, "reformer": 0.70, "uniform": 0.6, "none": 0.1}
CURVE = tuple({"step": step, "train_seconds": step / 10, "valid": step / 60} for step in (10, 20, 30))


def some_records(task: str = "digits", **changes) -> list[RunRecord]:
    """Five attentions and two controls, three seeds each, with costs of their own."""
    made = []
    for place, (name, score) in enumerate(reversed(SCORES.items())):
        for seed in (1, 2, 3):
            counted = {"parameters": 60_000 + 4_000 * place, "flops_per_example": 2_000_000 + 300_000 * place}
            measured = {"train_seconds": 5.0 + place, "peak_bytes": (8 + place) * 2**20}
            curve = tuple({**look, "valid": look["valid"] + seed / 100} for look in CURVE)
            told = {"counted": counted, "measured": measured, "curve": curve, **changes}
            made.append(make_record(name, task, seed, test=score + seed / 100, **told))
    return made


def drawn(table: Table, along: str):
    """A figure of the table against a cost or along a curve, and its only axes."""
    with matplotlib.rc_context(settings(along, outlined=False)):
        figure = Figure(figsize=SIZE)
        (draw_curves if along in ("step", "seconds", "flops") else draw_cost)(figure, table, along, style_of([table]), 0.96)
    return figure, figure.axes[0]


def names_in(axes) -> dict[str, tuple[float, float, float, float]]:
    """Where each text of the axes is, by what it says."""
    boxes = {}
    for note in axes.texts:
        extent = note.get_window_extent()
        boxes[note.get_text()] = (extent.x0, extent.y0, extent.x1, extent.y1)
    return boxes


@pytest.fixture
def table() -> Table:
    return tables(some_records())[0]


def test_every_cost_and_every_curve_is_drawn_twice(tmp_path, table):
    paths = draw([table], tmp_path / "new" / "folder")
    stems = ["flops", "time", "memory", "parameters", "curve-step", "curve-seconds", "curve-flops"]
    assert [path.name for path in paths] == [f"digits-{stem}.{kind}" for stem in stems for kind in ("png", "svg")]
    for path in paths:
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if path.suffix == ".png" else b"<svg" in start or b"<?xml" in start


def test_the_same_tables_make_the_same_svg_to_the_byte(tmp_path, table):
    for folder in ("one", "two"):
        draw([table], tmp_path / folder)
    for path in (tmp_path / "one").glob("*.svg"):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), f"{path.name} differs between two drawings"
        assert "<dc:date>" not in path.read_text(encoding="utf-8")


def test_settings_of_one_task_do_not_overwrite_each_other(table):
    other = tables(some_records(spec_task_options={"size": 16}))[0]
    found = [picture.name for number in (0, 1) for picture in pictures([table, other], number)]
    assert len(set(found)) == len(found) == 14
    assert {name.rsplit("-", 1)[0] for name in found if name.endswith("time")} == {"digits-1", "digits-2"}


def test_what_nobody_measured_makes_no_figure_and_is_named_where_some_did():
    unmeasured = tables([replace(record, measured={}) for record in some_records()])[0]
    assert [picture.along for picture in pictures([unmeasured], 0) if picture.kind == "cost"] == ["FLOPs", "parameters"]
    some = [replace(r, measured={}) if r.spec.attention == "reformer" else r for r in some_records()]
    captions = {picture.along: picture.caption for picture in pictures(tables(some), 0)}
    assert "Not measured: reformer" in captions["memory"] and "Not measured" not in captions["FLOPs"]


def test_captions_tell_seeds_dispersion_and_machine(table):
    for picture in pictures([table], 0):
        assert "3 seeds" in picture.caption and "95 % interval" in picture.caption
        assert ("Some CPU, 2 threads" in picture.caption) == (picture.along in ("time", "memory", "seconds"))


def test_nothing_to_draw_is_refused_before_a_folder_is_made(tmp_path):
    failed = tables([make_record(status="diverged", counted={}, curve=())])
    with pytest.raises(ValueError, match="no record holds a score with a cost"):
        draw(failed, tmp_path / "plots")
    assert not (tmp_path / "plots").exists()


@pytest.mark.parametrize("along", ["FLOPs", "time", "memory", "parameters", "step", "seconds", "flops"])
def test_no_name_covers_another_or_a_point(along, table):
    figure, axes = drawn(table, along)
    boxes = names_in(axes)
    said = " ".join(boxes)
    assert all(name in said for name in (*SCORES, "chance")), f"a row has no name in {sorted(boxes)}"
    for one, other in itertools.combinations(boxes, 2):
        assert not overlap(boxes[one], boxes[other]), f"{one!r} and {other!r} are written over each other"
    if along in ("FLOPs", "time", "memory", "parameters"):
        marks = [line for line in axes.lines if line.get_linestyle() == "None" and line.get_markersize() > 6]
        places = [axes.transData.transform(point) for line in marks for point in line.get_xydata()]
        for name, (left, bottom, right, top) in boxes.items():
            assert not any(left < x < right and bottom < y < top for x, y in places), f"{name!r} covers a point"
    else:
        frame = axes.get_window_extent()
        assert all(frame.x1 < left and right <= figure.bbox.x1 for left, _, right, _ in boxes.values()), (
            "names stand beside the axes"
        )


def test_a_crowd_is_told_apart_by_names_of_the_best_alone():
    crowd = [
        r for dial in range(60) for r in (make_record("performer", seed=1, test=0.5 + dial / 200, spec_options={"dial": dial}),)
    ]
    table = tables(crowd)[0]
    _, axes = drawn(table, "parameters")
    boxes = names_in(axes)
    assert "performer dial=59" in boxes and "performer dial=0" not in boxes
    assert not any(overlap(boxes[one], boxes[other]) for one, other in itertools.combinations(boxes, 2))
    captions = {picture.along: picture.caption for picture in pictures([table], 0)}
    assert "at most 16 of 60 rows have names and intervals" in captions["parameters"]
    assert len(curves_of(table, "step")) == DRAWN and f"{DRAWN} of 60 rows are drawn" in captions["step"]


def test_of_many_curves_each_attention_keeps_its_best():
    many = [make_record("performer", test=0.9 - dial / 100, spec_options={"dial": dial}) for dial in range(20)]
    table = tables([*many, make_record("linformer", test=0.1)])[0]
    assert "linformer" in [row.attention for row in curves_of(table, "step")]


def test_the_front_is_that_of_the_rows(table):
    _, axes = drawn(table, "FLOPs")
    (front,) = [line for line in axes.lines if line.get_drawstyle() == "steps-post"]
    wanted = sorted((row.flops_per_example, 100 * row.test.mean) for row in table.rows if "FLOPs" in row.fronts and row.test)
    assert len(wanted) > 2
    assert front.get_xydata()[:-1].ravel().tolist() == pytest.approx([value for point in wanted for value in point])


def test_measured_costs_have_a_front_for_each_block():
    kernels = [
        replace(r, spec=replace(r.spec, implementation="sdpa"), run_id="x") for r in some_records() if r.spec.attention == "softmax"
    ]
    table = tables([*some_records(), *kernels])[0]
    assert sum(line.get_drawstyle() == "steps-post" for line in drawn(table, "time")[1].lines) == 2
    assert sum(line.get_drawstyle() == "steps-post" for line in drawn(table, "FLOPs")[1].lines) == 1


def test_a_score_far_beneath_is_told_by_an_arrow_at_the_edge():
    table = tables([make_record("softmax", test=0.90), make_record("linformer", test=0.91), make_record("none", test=0.1)])[0]
    _, axes = drawn(table, "FLOPs")
    assert {"none 10.0", "chance 10.0 ↓"} <= set(names_in(axes))
    assert axes.get_ylim()[0] > 80, "the contenders fill the axis"


def test_perplexities_are_no_per_cent_and_low_is_told_to_be_better():
    card = {**make_record().task_card, "metric": "perplexity", "higher_is_better": False}
    table = tables(
        [make_record("softmax", test=12.0, task_card=card, chance=250.0), make_record("performer", test=14.0, task_card=card)]
    )[0]
    _, axes = drawn(table, "FLOPs")
    assert axes.get_ylabel() == "test perplexity, lower is better"
    assert axes.get_ylim()[1] < 20 and "chance 250.0 ↑" in names_in(axes)


def test_one_colour_an_attention_one_marker_an_implementation_in_all_tables():
    other = [replace(r, spec=replace(r.spec, implementation="sdpa"), implementation="sdpa") for r in some_records("listops")]
    both = tables([*some_records(), *other])
    style = style_of(both)
    assert style.colours["uniform"] == style.colours["none"] == MUTED
    contenders = [style.colours[name] for name in SCORES if name not in ("uniform", "none")]
    assert len(set(contenders)) == 5 and MUTED not in contenders
    assert style.markers["eager"] != style.markers["sdpa"]
    for name in ("FLOPs", "memory"):
        for table in both:
            _, axes = drawn(table, name)
            hollow = {line.get_color() for line in axes.lines if line.get_markerfacecolor() == PAPER}
            assert hollow == {MUTED}, "controls, and they alone, are hollow"


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("dark", [False, True])
def test_every_colour_stands_out_from_the_page(dark):
    for colour in (INK, MUTED, *SERIES):
        shown, page = (DARK[colour], DARK[PAPER]) if dark else (colour, PAPER)
        light, deep = sorted((luminance(shown), luminance(page)), reverse=True)
        needed = 4.5 if colour in (INK, MUTED) else 3.0
        assert (light + 0.05) / (deep + 0.05) >= needed, f"{shown} on {page}"


def test_things_are_moved_apart_as_little_as_needed():
    assert apart([10, 50], [10, 10], 0, 100) == [10, 50], "what does not touch stays"
    assert apart([50, 50], [10, 10], 0, 100) == [45, 55]
    assert apart([98, 99], [10, 10], 0, 100) == [85, 95], "all stays within"
    moved = apart([20, 22, 24, 90], [10, 20, 10, 10], 0, 100)
    assert all(b - a >= gap - 1e-9 for a, b, gap in zip(moved, moved[1:], (15, 15, 10), strict=False))


def test_long_names_are_folded_between_words():
    assert folded("linformer_causal projected_length=4") == "linformer_causal\nprojected_length=4"
    assert folded("softmax (sdpa)") == "softmax (sdpa)"


def test_svg_of_a_page_is_text_that_can_be_searched(table):
    first = next(iter(pictures([table], 0)))
    assert ">linformer<" in svg(first, style_of([table]))


def family_records() -> list[RunRecord]:
    """39 rows of close scores, as a table of every mechanism has."""
    names = ["softmax", "linformer", *(f"mechanism_{at}" for at in range(33)), "uniform", "none", "convolution", "frozen_random"]
    made = []
    for at, name in enumerate(names):
        counted = {"parameters": 50_000 + 700 * at, "flops_per_example": 1_700_000 + 37_000 * (at * 7 % 39)}
        score = 0.1 + at / 400 if at > 34 else 0.92 + (at * 5 % 39) / 1000
        made.append(
            make_record(name, test=score, counted=counted, measured={"train_seconds": 5.0 + at, "peak_bytes": 2**23 + 2**17 * at})
        )
    return made


@pytest.mark.parametrize("along", ["FLOPs", "time", "memory", "parameters"])
def test_of_39_rows_softmax_and_linformer_have_names_and_no_leaders_cross(along):
    _, axes = drawn(tables(family_records())[0], along)
    boxes = names_in(axes)
    assert {"softmax", "linformer"} <= set(boxes)
    assert not any(overlap(boxes[one], boxes[other]) for one, other in itertools.combinations(boxes, 2))
    lines = [line.get_xydata() for line in axes.lines if line.get_linewidth() == 0.6 and len(line.get_xydata()) == 2]
    assert lines, "a crowd needs leaders"
    for (a, b), (c, d) in itertools.combinations(lines, 2):
        turns = [
            (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])
            for p, q, r in ((a, b, c), (a, b, d), (c, d, a), (c, d, b))
        ]
        assert turns[0] * turns[1] >= 0 or turns[2] * turns[3] >= 0, "two leaders cross"


def test_of_39_rows_six_have_colours_of_their_own_and_none_repeats():
    style = style_of(tables(family_records()))
    coloured = [colour for colour in style.colours.values() if colour not in (INK, MUTED)]
    assert sorted(coloured) == sorted(SERIES)
    assert style.colours["softmax"] == INK and style.colours["linformer"] in SERIES


def test_a_score_among_many_is_told_under_the_pointer():
    table = tables(family_records())[0]
    text = svg(next(iter(pictures([table], 0))), style_of([table]))
    assert all(f"<title>{row.label}: accuracy" in text for row in table.rows)


def test_no_interval_leaves_the_range_of_a_share():
    records = [
        make_record(name, seed=seed, test=test)
        for name in ("softmax", "linformer")
        for seed, test in ((1, 0.99), (2, 0.6), (3, 1.0))
    ]
    table = tables(records)[0]
    assert table.rows[0].test and table.rows[0].test.mean + table.rows[0].test.half_width > 1  # type: ignore[operator]
    for along in ("FLOPs", "step"):
        _, axes = drawn(table, along)
        tops = [path.vertices[:, 1].max() for bars in axes.collections for path in bars.get_paths() if len(path.vertices)]
        assert tops and max(tops) <= 100 + 1e-9


def overall_map(*, left_out: str = ""):
    """A heat map of four tasks with costs, one mechanism without three of them."""
    records = [
        r
        for task in ("digits", "listops", "mqar", "copying")
        for r in some_records(task)
        if task == "digits" or r.spec.attention != left_out
    ]
    made = tables(records)
    return made, heat_map(made, [*recorded_columns(made), *measured_columns(made)])


def test_over_all_tasks_a_mechanism_stands_at_its_mean_way_and_its_multiple_of_softmax():
    made, found = overall_map()
    by_axis = {picture.along: picture for picture in overalls(found)}
    assert len(by_axis) == 3 and {"time", "memory"} < set(by_axis)
    drawn = {point.attention: point for point in overall.points(found, found.costs[1])}
    assert set(drawn) == {"softmax", "linformer", "performer", "longformer", "reformer"}, "controls are where the way begins"
    assert drawn["softmax"].share == pytest.approx(100) and drawn["softmax"].cost == 1
    assert drawn["reformer"].share == pytest.approx(100 * (0.70 - 0.6) / (0.82 - 0.6))
    assert drawn["reformer"].cost == pytest.approx(7 / 11), "seconds of reformer over those of softmax"
    assert "Mean over 4 tasks" in by_axis["time"].caption
    text = svg(by_axis["time"], style_of(made))
    assert all(f">{name}<" in text for name in drawn)


def test_a_mechanism_on_few_tasks_is_no_point_over_all_tasks():
    _, found = overall_map(left_out="reformer")
    assert "reformer" not in {point.attention for point in overall.points(found, found.costs[1])}
    assert "Not drawn: 1 mechanisms run on fewer than half of the tasks" in overall.caption(found, found.costs[1])


def test_files_follow_a_dark_page(tmp_path):
    (svg_file,) = [path for path in draw(tables(some_records()), tmp_path) if path.name == "digits-time.svg"]
    text = svg_file.read_text(encoding="utf-8")
    assert text.count("prefers-color-scheme:dark") == 1
    assert f'[style*="fill: {INK}"]{{fill:{DARK[INK]}!important}}' in text and "title:" not in text
