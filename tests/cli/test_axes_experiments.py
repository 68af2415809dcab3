"""Experiments over state, length and size: settings, rows and their order."""

from __future__ import annotations

from functools import cache

import pytest

from attn_zoo import card
from attn_zoo.cli.compose import plan
from attn_zoo.cli.tune import plan_searches, read_request

FIRST = ["delta_rule", "gated_linear", "linear", "softmax", "longformer", "linformer_causal"]


@cache
def bases(*words):
    """Spec of each search of a command."""
    return [searched.study.base for searched in plan_searches(read_request(words)) if searched.study]


def test_recall_is_tested_for_each_number_of_pairs_with_twelve_states_or_windows_of_up_to_three_sizes():
    specs = bases("experiment=capacity")
    (task,) = {str(spec.task_options) for spec in specs}
    options = specs[0].task_options
    assert (options["length"], options["causal"]) == (256, True)
    assert (options["fewest_pairs"], options["pairs"], options["most_pairs"]) == (4, 64, 64), task
    rows = [spec.attention for spec in specs if not card(spec.attention).control and spec.attention != "softmax"]
    assert len(set(rows)) == 12 and {rows.count(name) for name in rows} == {1, 3}
    assert [spec.attention for spec in specs][: len(FIRST)] == FIRST, "the rows that tell most come first"


@pytest.mark.parametrize("width", [32, 128])
def test_every_size_fits_every_width(width):
    sized = "attention=based[channels=16],luna[packed_length=128],performer[features=128],linformer_causal[projected_length=16]"
    found = bases("experiment=capacity", f"model.dim={width}", sized)
    assert len(found) == 4 and {spec.model.dim for spec in found} == {width}


def test_every_row_copies_at_four_lengths_for_the_same_time_with_three_seeds():
    specs = plan(["-m", "experiment=length"]).specs
    cells = {(spec.attention, spec.task_options["length"], spec.seed) for spec in specs}
    names = {name for name, _, _ in cells}
    assert cells == {(name, n, seed) for name in names for n in (256, 1024, 4096, 16384) for seed in (1, 2, 3)}
    assert len(cells) == len(specs) and len(names - {"softmax", "uniform"}) >= 5
    assert {(spec.budget.seconds, spec.budget.schedule) for spec in specs} == {(420.0, "constant")}
    assert len({(spec.attention, spec.budget.learning_rate) for spec in specs}) == len(names), "one rate for a mechanism"
    shared = {(s.task_options["length"], s.budget.batch_size, s.task_options["train"], s.task_options["test"]) for s in specs}
    assert len(shared) == 4, "rows of a length share batch and data"
    assert {spec.attention for spec in specs[:12]} >= {"luna", "linear", "softmax"} and specs[0].task_options["length"] == 4096


def test_causal_rows_are_tested_at_up_to_sixteen_times_the_trained_length():
    specs = bases("experiment=length_beyond")
    assert {(s.task, s.task_options["length"], s.task_options["longer"], s.model.positions) for s in specs} == {
        ("needle", 64, 16, "none")
    }


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_larger_networks_have_the_tasks_of_the_profile_and_eight_mechanisms(name):
    specs, profile = bases(f"experiment=size_{name}"), bases(f"experiment=profile3_{name}", "attention=softmax")
    assert {(spec.model.dim, spec.model.depth) for spec in specs} == {(128, 4)}
    tasks = {(spec.task, str(spec.task_options)) for spec in specs}
    assert len(tasks) == 2 and tasks <= {(spec.task, str(spec.task_options)) for spec in profile}
    assert len({spec.attention for spec in specs if not card(spec.attention).control}) == 8
