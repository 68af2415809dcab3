"""Hyperparameter search: settings are chosen on validation alone, trials are counted, and the resulting rows say so."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from make import make_record, stored
from omegaconf import OmegaConf
from run_helpers import zoo

from attn_zoo import registry
from attn_zoo.cli import tune
from attn_zoo.cli.job import searched_values, with_tuning
from attn_zoo.cli.run import plan
from attn_zoo.cli.search import draws, objective
from attn_zoo.cli.tune import plan_searches, read_request
from attn_zoo.records import RunRecord, Store, Tuning
from attn_zoo.records.tuning import trials_of

SMALL = ["task=digits", "budget.steps=4", "budget.evaluate_every=2", "model.dim=16", "model.heads=2", "threads=1"]
TUNE = ["tune", "attention=linformer,none", "trials=3", "seeds=1,2", *SMALL]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("tuned")
    status, output, errors = zoo(*TUNE, folder=folder)
    assert status == 0, errors
    return folder, output


def recorded(folder: Path) -> list[RunRecord]:
    records, damaged = Store(folder / "runs").load()
    assert damaged == []
    return records


def finals(folder: Path) -> Iterator[tuple[RunRecord, Tuning]]:
    for record in recorded(folder):
        if record.tuning is not None and not record.is_trial:
            yield record, record.tuning


def test_every_mechanism_has_as_many_trials_and_runs_with_seeds_of_their_own(tuned):
    folder, _ = tuned
    assert len(recorded(folder)) == 2 * (3 + 2)
    for name, keys in (("linformer", ["attention.projected_length", "budget.learning_rate"]), ("none", ["budget.learning_rate"])):
        runs = [(record, ledger) for record, ledger in finals(folder) if record.spec.attention == name]
        assert sorted(record.spec.seed for record, _ in runs) == [1, 2]
        (study,) = {ledger.study for _, ledger in runs}
        trials = trials_of(recorded(folder), study)
        assert [record.tuning.trial for record in trials if record.tuning] == [0, 1, 2]
        assert {record.spec.seed for record in trials} == {0}
        assert all(sorted(ledger.space) == keys and ledger.trials == 3 and ledger.failed == 0 for _, ledger in runs)
        best = max(trials, key=lambda record: record.scores["valid"])
        for record, ledger in runs:
            assert ledger.best_valid == best.scores["valid"] and trials[ledger.best_trial or 0] == best
            assert replace(record.spec, seed=0) == best.spec, "the settings are those of the best trial"


def test_trials_have_no_test_score(tuned):
    folder, output = tuned
    assert all(set(record.scores) == {"valid", "train"} for record in recorded(folder) if record.is_trial)
    assert all("test" in record.scores for record, _ in finals(folder))
    assert not [line for line in output.splitlines() if "trial" in line and "test accuracy" in line]


def test_the_leaderboard_has_a_row_for_each_study_and_counts_its_trials(tuned):
    _, output = tuned
    assert output.count("Digits (patches), costs") == 1, "one leaderboard, in the end"
    lines = [line.split() for line in output.splitlines()]
    head = next(line for line in lines if line[:1] == ["attention"] or line[:2] == ["rank", "attention"])
    assert head[-1] == "trials"
    assert next(line[-1] for line in lines[lines.index(head) :] if line[:1] == ["linformer"]) == "3"
    assert "best of 3 trials by validation" in output
    assert "different numbers of trials" not in output


def test_the_tables_of_the_end_are_those_of_the_rows_asked_for(tuned, tmp_path):
    folder, _ = tuned
    other = make_record(task="mqar")
    stored(tmp_path / "runs", [*recorded(folder), other])
    status, again, _ = zoo(*TUNE, folder=tmp_path)
    assert status == 0 and "Digits (patches)" in again
    assert other.task_card["title"] not in again


def test_the_tables_of_the_end_have_rows_with_other_values_of_a_searched_budget(tmp_path):
    words = ["attention=none", "trials=2", "seeds=1,2", "budget.weight_decay=choice(0.0,0.2)", *SMALL]
    status, output, errors = zoo("tune", *words, folder=tmp_path)
    assert status == 0, errors
    assert "best of 2 trials by validation" in output and "weight_decay=" in output.split("Digits (patches)")[-1]


def test_the_same_command_again_trains_nothing(tuned):
    folder, _ = tuned
    before = {record.source for record in recorded(folder)}
    status, output, _ = zoo("tune", "attention=none", *TUNE[2:], folder=folder)
    assert status == 0
    assert output.count(": recorded already") == 3 + 2
    assert {record.source for record in recorded(folder)} == before


def test_more_trials_go_on_from_those_there_are_and_unequal_numbers_are_warned_of(tuned, tmp_path):
    folder, _ = tuned
    shutil.copytree(folder / "runs", tmp_path / "runs")
    status, output, _ = zoo("tune", "attention=none", "trials=4", "seeds=1,2", *SMALL, folder=tmp_path)
    assert status == 0
    assert "4 trials of none" in output and "3 of them recorded already" in output
    (study,) = {record.tuning.study for record in recorded(tmp_path) if record.tuning and record.spec.attention == "none"}
    assert len(trials_of(recorded(tmp_path), study)) == 4
    assert "rows were tuned with different numbers of trials" in output
    assert "3: linformer; 4: none" in output


def test_a_search_that_was_cut_short_draws_the_same_trials(tuned, tmp_path):
    folder, _ = tuned
    kept = [r for r in recorded(folder) if r.is_trial and r.spec.attention == "linformer" and r.tuning and r.tuning.trial != 1]
    stored(tmp_path / "runs", kept)
    status, output, _ = zoo("run", "experiment=tune", "attention=linformer", "tuning.trials=3", *SMALL, folder=tmp_path)
    assert status == 0
    assert output.count(": recorded already") == 2
    there = {
        record.run_id: record.scores for record in recorded(folder) if record.is_trial and record.spec.attention == "linformer"
    }
    assert {record.run_id: record.scores for record in recorded(tmp_path)} == there
    assert "accuracy (%)" not in output, "trials are no rows"


def test_a_grid_needs_no_optuna_and_draws_every_combination(monkeypatch):
    monkeypatch.setattr("attn_zoo.cli.config.find_spec", lambda name: None)
    space = "+tuning.space={budget.learning_rate: 'choice(0.001,0.01)', attention.projected_length: 'range(2,9,3)'}"
    study = plan([space, "attention=linformer"]).study
    assert study is not None and study.trials == 6
    drawing = draws(study)
    batch = next(drawing)
    specs = [study.run_with(values).spec for values in batch]
    assert [(s.options["projected_length"], s.budget.learning_rate) for s in specs] == [
        (k, rate) for rate in (0.001, 0.01) for k in (2, 5, 8)
    ]
    with pytest.raises(StopIteration):
        drawing.send([0.0] * 6)
    fewer = plan([space, "attention=linformer", "tuning.trials=2"]).study
    assert fewer is not None and next(draws(fewer)) == batch[:2] and fewer.id == study.id


def test_a_search_may_try_the_default_of_an_option_that_specs_leave_out():
    space = "+tuning.space={attention.sinks: 'choice(false,true)'}"
    study = plan([space, "attention=softmax"]).study
    assert study is not None
    trials = [study.run_with(values).spec for values in next(draws(study))]
    assert [spec.options.get("sinks") for spec in trials] == [None, True]
    drawn = Tuning(study.id, study.space, trial=0)
    assert [searched_values(spec, drawn) for spec in trials] == ["sinks=default", "sinks=True"]
    same, turned = (plan([text, "attention=softmax"]).study for text in (space, space.replace("false,true", "true,false")))
    assert same is not None and turned is not None and same.id == study.id != turned.id


def test_only_a_bracketed_search_has_a_second_seed():
    plan_searches(read_request(["attention=none", "task=digits", "seeds=1,1000"]))


def test_a_written_down_search_has_its_rows_and_leaves_out_those_that_refuse(capsys):
    causal = plan_searches(read_request(["experiment=profile_encoder", "task=mqar", "task.causal=true"]))
    taken = {search.specs[0].attention for search in causal}
    assert {"softmax", "linear", "none"} <= taken and not {"linformer", "nystrom"} & taken
    assert "attention=nystrom task=mqar is left out" in capsys.readouterr().out
    with pytest.raises(ValueError, match="nystrom has no causal form"):
        plan_searches(read_request(["experiment=profile_encoder", "attention=nystrom", "task=mqar", "task.causal=true"]))


def rows(*words: str) -> list[str]:
    return [str(row) for row, _ in read_request(["task=mqar", *words]).searches]


def test_a_search_and_a_seed_that_are_named_twice_count_once():
    asked = read_request(["attention=none,none", "task=digits", "seeds=4,5,4"])
    assert len(plan_searches(asked)) == 1 and asked.seeds == (4, 5)


def test_no_table_is_printed_if_the_command_says_so(monkeypatch):
    printed = list[int]()
    monkeypatch.setattr(tune, "carry_out", lambda searched, command: 0)
    monkeypatch.setattr(tune, "_with_best_settings", lambda searched, seeds, command: 0)
    monkeypatch.setattr(tune, "_report", lambda planned: printed.append(len(planned)))
    for word in ("report=false", "report=true"):
        assert tune.run_command(["attention=none", "task=digits", word]) == 0
    assert printed == [1]


def test_a_curve_is_one_search_for_each_setting_unless_one_is_typed():
    curve = [f"linformer[projected_length={k}]" for k in (4, 8, 16, 32, 48)]
    assert rows("experiment=curves", "attention=linformer,softmax") == [*curve, "softmax"]
    assert rows("experiment=curves", "attention=linformer", "attention.projected_length=7") == ["linformer"]
    assert rows("experiment=curves", "attention=linformer[projected_length=7],softmax") == [
        "linformer[projected_length=7]",
        "softmax",
    ]
    assert len(rows("experiment=curves")) == 4 + 5 * 5
    assert rows("attention=linformer[projected_length=4|8],none") == [
        "linformer[projected_length=4]",
        *rows("attention=linformer[projected_length=8],none"),
    ]


RATE = {"budget.learning_rate": "tag(log,interval(0.0001,0.02))"}
SPACES = {
    "attention=linformer": {"attention.projected_length": "choice(4,8,16)", **RATE},
    "attention=linformer task=listops task.length=300": {"attention.projected_length": "choice(4,8,16,32,64,128,256)", **RATE},
    "attention=linformer attention.projected_length=8": RATE,
    "attention=linformer[projected_length=8]": RATE,
    "attention=linformer dials.linformer.projected_length=8": RATE,
    "attention=linformer dials.linformer.projected_length=8 attention.projected_length=choice(4,8)": {
        **{"attention.projected_length": "choice(4,8)", **RATE},
    },
    "attention=longformer dials.linformer.projected_length=8": {"attention.window": "choice(5,9)", **RATE},
    "attention=linformer+softmax": {"attention.linformer.projected_length": "choice(4,8,16)", **RATE},
    "attention=linformer+softmax dials.linformer.projected_length=8": RATE,
    "attention=none budget.learning_rate=interval(0.001,0.002)": {"budget.learning_rate": "interval(0.001,0.002)"},
}
"""Words of a search on digits, with the ranges that it searches."""


@pytest.mark.parametrize("words", SPACES)
def test_what_is_searched_is_what_neither_the_row_nor_the_command_line_nor_the_length_decides(words):
    study = plan(["experiment=tune", "task=digits", "model.depth=2", *words.split()]).study
    assert study is not None and dict(study.space) == SPACES[words]
    if SPACES[words] == RATE:
        assert 8 in study.base.options.values()


def test_one_study_has_one_id_however_it_is_written_and_whatever_the_number_of_trials():
    def id_of(*words: str) -> str:
        study = plan(["experiment=tune", "task=digits", *words]).study
        assert study is not None
        return study.id

    usual, fixed = id_of("attention=linformer"), id_of("attention=linformer[projected_length=8]")
    assert fixed == id_of("attention=linformer", "attention.projected_length=8") != usual
    assert usual == id_of("attention=linformer", "tuning.trials=99")
    ranges = "budget.learning_rate=tag(log, interval(0.001, 0.002))"
    assert id_of("attention=linformer", ranges) == id_of("attention=linformer", ranges.replace(" ", "")) != usual


def test_a_metric_that_is_better_when_lower_is_minimised():
    study = plan(["experiment=tune", "attention=none", "task=masked_language", "level=smoke", "tuning.trials=30"]).study
    assert study is not None
    drawing, drawn = draws(study), list[float]()
    batch = next(drawing)
    with contextlib.suppress(StopIteration):
        while True:
            drawn += [values["budget.learning_rate"] for values in batch]
            batch = drawing.send([values["budget.learning_rate"] for values in batch])
    assert len(drawn) == 30
    assert sum(rate < 0.001 for rate in drawn[15:]) > 10, "where low rates score low, low rates are drawn"


def test_every_candidate_is_an_option_of_its_mechanism():
    with initialize_config_module("attn_zoo.configs", version_base="1.3"):
        dials = OmegaConf.to_container(compose("run", ["experiment=tune"]).tuning.dials)
    assert isinstance(dials, dict)
    for name, candidates in dials.items():
        assert isinstance(name, str)
        assert len(candidates) == 1, f"{name} has one dial of its own"
        for option, values in candidates.items():
            for value in values:
                registry.stated_options(registry.card(name), {option: value})
    with_dials = {name for name in registry.attentions() if name in dials}
    assert set(dials) == with_dials, "no mechanism is misspelt"


def test_a_trial_that_fails_is_the_worst_there_is_and_is_not_tried_again(tmp_path):
    tuning = Tuning("0123456789ab", {"budget.learning_rate": "choice(1,2)"}, trial=3)
    failed = with_tuning(make_record(status="failed"), tuning)
    assert objective(failed) == float("-inf")
    assert objective(replace(failed, task_card={**failed.task_card, "higher_is_better": False})) == float("inf")
    Store(tmp_path).add(failed)
    assert Store(tmp_path).finished(failed.run_id, tuning), "it is spent"
    assert not Store(tmp_path).finished(failed.run_id), "a run that is no trial is done all the same"
    assert not Store(tmp_path).finished(failed.run_id, replace(tuning, study="ba9876543210"))
    with pytest.raises(BlockingIOError, match="a trial that another process is running now"):
        objective(None)
