"""Experiments are fair: rows of a table share data, network, budget, seeds and search, beside softmax or a control."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from committed import records_in
from figure3.cells import USUAL_START

from attn_zoo import registry
from attn_zoo.cli.run import plan
from attn_zoo.cli.tune import plan_searches, read_request
from attn_zoo.records import RunRecord, RunSpec

EXPERIMENTS = sorted(path.stem for path in (Path(__file__).parents[2] / "configs" / "experiment").glob("*.yaml"))
ROWS = {"tune": ("attention=softmax,uniform", "task=digits"), "equal_time_half_hour": ("attention=softmax,uniform",)}
"""Words for experiments that leave rows to the command line."""


@cache
def specs_of(name: str, *words: str) -> tuple[tuple[RunSpec, ...], frozenset[str]]:
    """Spec of each run or search of an experiment, and the spaces that are searched."""
    words = (f"experiment={name}", *ROWS.get(name, ()), *words)
    try:
        request = read_request(words)
    except ValueError as error:
        if "does not search any setting" not in str(error):
            raise
        return plan(["-m", *words]).specs, frozenset()
    studies = [search.study for search in plan_searches(request) if search.study]
    assert 0 not in request.seeds, "no seed of the search is tested"
    rates = frozenset(str(study.space["budget.learning_rate"]) for study in studies)
    return tuple(study.base for study in studies), rates


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_rows_of_a_table_share_data_network_batch_budget_seeds_and_search(name):
    specs, spaces = specs_of(name)
    tables: defaultdict[Any, list[RunSpec]] = defaultdict(list)
    for spec in specs:
        tables[spec.task, str(spec.task_options), str(spec.model)].append(spec)
    assert len(spaces) <= 1 and {spec.seed == 0 for spec in specs} == {bool(spaces)}
    for rows in tables.values() if len(specs) > 1 else ():
        assert len({replace(spec.budget, learning_rate=1.0) for spec in rows}) == 1
        seeds: defaultdict[str, set[int]] = defaultdict(set)
        for spec in rows:
            seeds[f"{spec.attention} {spec.options}"].add(spec.seed)
        assert len({frozenset(each) for each in seeds.values()}) == 1 < len(seeds)
        assert any(row.attention == "softmax" or registry.card(row.attention).control for row in rows if "+" not in row.attention)


@pytest.mark.parametrize("name", ["length", "linformer_figure3", "linformer_figure3_cpu", "linformer_table2_pretrained"])
def test_a_step_has_as_many_tokens_at_every_length(name):
    specs, _ = specs_of(name)
    assert len({spec.task_options["length"] for spec in specs}) > 1
    assert len({spec.budget.batch_size * spec.task_options["length"] for spec in specs}) == 1


@pytest.mark.parametrize("name", ["profile3_encoder", "profile3_decoder"])
def test_the_profile_has_the_whole_zoo(name):
    causal = name == "profile3_decoder"
    zoo = {attention for attention in registry.attentions() if registry.card(attention).can.causal or not causal}
    assert {spec.attention for spec in specs_of(name)[0]} == zoo


def test_family_is_every_mechanism_that_its_records_hold():
    specs = specs_of("family", "task=listops", "seed=1")[0]
    recorded = {record.spec.attention for record in records_in("family") if record.spec.task == "listops"}
    assert {spec.attention for spec in specs} == recorded <= set(registry.attentions())
    assert len(specs) == len(recorded) >= 25
    every = specs_of("family")[0]
    assert {(spec.task, spec.seed) for spec in every} == set(product(("digits", "listops"), (1, 2, 3)))


def test_the_bare_arm_differs_from_the_profile_in_the_convolution_alone():
    bare, whole = (specs_of(name)[0] for name in ("profile_bare", "profile_encoder"))
    assert {spec.model.short_convolution for spec in bare} == {0} and {spec.model.short_convolution for spec in whole} == {4}
    assert all(replace(spec, model=replace(spec.model, short_convolution=4)) in whole for spec in bare)


def figure3_setting(spec: RunSpec) -> tuple[object, ...]:
    """Setting for which a learning rate is chosen."""
    start = {name: spec.options.get(name, usual) for name, usual in USUAL_START.items()} if spec.attention == "linformer" else {}
    values = tuple(getattr(value, "value", value) for value in start.values())
    return spec.attention, spec.model.short_convolution, spec.task_options["length"], *values


def worse(record: RunRecord) -> float:
    """Return a number that is the larger, the worse a record is by validation."""
    return -record.scores["valid"] if record.task_card["higher_is_better"] else record.scores["valid"]


@pytest.mark.parametrize(
    ("name", "trials", "setting", "count"),
    [
        ("linformer_figure3_cpu", "linformer_figure3_rates", figure3_setting, 10),
        ("linformer_table2_pretrained", "linformer_table2_rates", lambda spec: (spec.attention, spec.task), 12),
    ],
)
def test_rates_are_those_that_the_committed_trials_chose(name, trials, setting: Callable[[RunSpec], Any], count):
    best: dict[object, float] = {}
    for record in sorted(records_in(trials), key=worse):
        if record.is_trial and record.spec.task_options.get("files") != "novels":
            best.setdefault(setting(record.spec), record.spec.budget.learning_rate)
    specs = [spec for spec in specs_of(name)[0] if spec.attention not in ("none", "convolution")]
    rates = {setting(spec): spec.budget.learning_rate for spec in specs}
    found = {key: rate for key, rate in rates.items() if key in best}
    assert found == {key: best[key] for key in found} and len(found) == count
