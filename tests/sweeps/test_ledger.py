"""Trials of a search and runs with the best settings, in records and in tables."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make import make_record, stored
from page_data import text_of

from attn_zoo.cli import main
from attn_zoo.leaderboard import leaderboard, render, tables
from attn_zoo.leaderboard.difference import difference
from attn_zoo.leaderboard.page import ResultSet, html_page
from attn_zoo.records import SCHEMA, RecordError, RunRecord, RunSpec, Store, Tuning
from attn_zoo.records.spec import digest_of
from attn_zoo.records.tuning import best_of, ledger, setting, study_id, trials_of

SPACE = {"attention.dial": "choice(1,2,4)", "budget.learning_rate": "tag(log,interval(0.001,0.1))"}


def trial(number: int, *, valid: float, study: str = "a" * 12, attention: str = "linformer", **changes: Any) -> RunRecord:
    record = with_settings(make_record(attention, seed=0, **changes), 0.001 * (number + 1))
    scores = {} if record.status != "done" else {"valid": valid, "train": valid}
    curve = tuple({**point, "valid": valid} for point in record.curve)
    return replace(record, scores=scores, curve=curve, tuning=Tuning(study, SPACE, trial=number))


def renewed(data: dict[str, Any]) -> dict[str, Any]:
    """Return a record's data with the digest of their content."""
    rest = {name: value for name, value in data.items() if name != "digest"}
    return {**rest, "digest": digest_of(rest)}


def with_settings(record: RunRecord, rate: float, dial: int = 2) -> RunRecord:
    spec = replace(record.spec, options={"dial": dial}, budget=replace(record.spec.budget, learning_rate=rate))
    return replace(record, spec=spec, run_id=spec.run_id("1"))


def chosen(seed: int, *, rate: float = 0.002, study: str = "a" * 12, attention: str = "linformer", **changes: Any) -> RunRecord:
    tuning = Tuning(study, SPACE, trials=2, failed=0, best_trial=1, best_valid=0.8, seed=0)
    return replace(with_settings(make_record(attention, seed=seed, **changes), rate), tuning=tuning)


def test_the_ledger_counts_failed_trials_and_takes_the_first_of_the_best():
    records = [
        trial(0, valid=0.5),
        trial(1, valid=0.8),
        trial(2, valid=0.8),
        trial(3, valid=0.0, status="diverged"),
        trial(4, valid=0.9, study="b" * 12),
        make_record(),
    ]
    drawn = ledger([*records, records[1]], "a" * 12)
    assert (drawn.trials, drawn.failed, drawn.best_trial, drawn.best_valid, drawn.seed) == (4, 1, 1, 0.8, 0)
    assert drawn.space == SPACE and drawn.trial is None
    lower = [replace(r, task_card={**r.task_card, "higher_is_better": False}) for r in trials_of(records, "a" * 12)]
    best = best_of(lower)
    assert best is not None and best.scores["valid"] == 0.5
    with pytest.raises(ValueError, match="none of its 1 recorded trials has one"):
        ledger([trial(0, valid=0.0, status="failed")], "a" * 12)


def test_a_study_is_all_that_its_trials_share():
    spec = make_record().spec
    same = with_settings(make_record(), 0.05, dial=4).spec
    assert study_id(spec, SPACE, "1") == study_id(same, SPACE, "1"), "whatever was drawn"
    others = [
        study_id(replace(spec, seed=1), SPACE, "1") == study_id(replace(spec, seed=2), SPACE, "1"),
        study_id(spec, {**SPACE, "attention.dial": "choice(1,2)"}, "1") == study_id(spec, SPACE, "1"),
        study_id(spec, SPACE, "2") == study_id(spec, SPACE, "1"),
        study_id(replace(spec, task="other"), SPACE, "1") == study_id(spec, SPACE, "1"),
    ]
    assert others == [False] * 4
    assert setting(same, "attention.dial") == 4 and setting(same, "budget.learning_rate") == 0.05
    with pytest.raises(KeyError):
        study_id(spec, {"attention.nothing": "choice(1)"}, "1")


def test_records_without_tuning_are_what_they_were():
    plain = make_record()
    assert "tuning" not in plain.to_dict()
    assert RunRecord.from_dict(json.loads(json.dumps(plain.to_dict()))) == plain
    assert RunSpec("a", "t", implementation="eager").run_id("1", "1.0") == "6461acf7fc94fddf", "an id of before there was tuning"
    for record in (trial(0, valid=0.5), chosen(1)):
        data = json.loads(json.dumps(record.to_dict()))
        assert data["schema"] == SCHEMA and None not in data["tuning"].values()
        assert RunRecord.from_dict(data) == record
        with pytest.raises(RecordError, match=r"unknown field .what. - at .\$.tuning"):
            RunRecord.from_dict(renewed({**data, "tuning": {**data["tuning"], "what": 1}}))


def test_a_trial_with_a_test_score_is_no_record():
    with pytest.raises(RecordError, match="by validation alone"):
        replace(trial(0, valid=0.5), scores={"valid": 0.5, "test": 0.5})
    with pytest.raises(RecordError, match="by validation alone"):
        replace(trial(0, valid=0.5), scores={"valid": 0.5, "test: part": 0.5})
    with pytest.raises(RecordError, match="must have a test score"):
        replace(chosen(1), scores={"valid": 0.5})
    with pytest.raises(ValueError, match=r"must have either trial \(an index\) or trials"):
        Tuning("a" * 12, SPACE)
    with pytest.raises(ValueError, match="must have the name of a study"):
        Tuning("", SPACE, trial=1)


def test_trials_are_no_rows_and_rows_tuned_over_the_same_range_share_a_table():
    records = [*(trial(n, valid=0.5 + n / 10) for n in range(3)), *(chosen(seed) for seed in (1, 2))]
    records += [chosen(seed, rate=0.07, study="b" * 12, attention="softmax") for seed in (1, 2)]
    records += [make_record("linformer", seed=1)]
    tuned, untuned = sorted(tables(records), key=lambda table: -len(table.rows))
    assert [row.label for row in tuned.rows] == ["linformer (tuned)", "softmax"]
    assert tuned.budget["learning_rate"] == "tuned: tag(log,interval(0.001,0.1))"
    assert [row.label for row in untuned.rows] == ["linformer"]
    row = tuned.rows[0]
    assert row.tuned == {"attention.dial": 2, "budget.learning_rate": 0.002}
    assert row.seeds == (1, 2)
    assert row.trials == 3, "a trial that was added later counts"
    assert tables([trial(0, valid=0.5)]) == []


def test_of_a_study_the_settings_that_were_chosen_last_are_shown():
    early, late = {"started": "2026-01-01T00:00:00+00:00"}, {"started": "2026-01-02T00:00:00+00:00"}
    old = [replace(chosen(seed, test=0.99), environment=early) for seed in (1, 2, 3)]
    new = [replace(chosen(seed, rate=0.05, test=0.5), environment=late) for seed in (1, 2)]
    ((row,),) = (table.rows for table in tables([*new, *old]))
    assert row.by_seed == {1: 0.5, 2: 0.5}, "and no seed of those before it"
    assert row.tuned["budget.learning_rate"] == 0.05


def test_two_studies_of_one_attention_stand_apart():
    (table,) = tables([chosen(1), chosen(1, rate=0.004, study="b" * 12)])
    assert [row.label for row in table.rows] == [f"linformer (study {'a' * 12})", f"linformer (study {'b' * 12})"]


def test_every_way_of_showing_says_how_many_trials(tmp_path, capsys):
    records = [chosen(seed) for seed in (1, 2)]
    records += [replace(chosen(1, study="c" * 12, attention="softmax"), tuning=replace(chosen(1).tuning, study="c" * 12, trials=7))]  # type: ignore[type-var]
    loaded = stored(tmp_path, records)
    text = leaderboard(tmp_path)
    assert "linformer: dial=2, learning_rate=0.002, best of 2 trials by validation score (80.0 %, seed 0)" in text
    assert "different numbers of trials" in text and "2: linformer; 7: softmax" in text
    lines = {line["label"]: line for line in csv.DictReader(io.StringIO(render(tables(loaded), "csv")))}
    assert lines["linformer"]["trials"] == "2" and lines["linformer"]["study"] == "a" * 12
    assert json.loads(lines["linformer"]["tuned"]) == {"attention.dial": 2, "budget.learning_rate": 0.002}
    assert json.loads(render(tables(loaded), "json"))[0]["rows"][0]["tuning"]["trials"] == 2
    page = text_of(html_page([ResultSet(tables(loaded), loaded)]))
    assert "trials\n" in page and "learning rate tuned: tag(log,interval(0.001,0.1))" in page
    assert main(["show", "linformer", "--json", "--records", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)[0]["tuning"]["trials"] == 2
    plain = Path(tmp_path / "plain")
    Store(plain).add(make_record())
    assert "trials" not in leaderboard(plain), "where nothing was tuned, nothing is said of it"


def test_a_trial_that_is_asked_for_by_its_id_is_no_row(tmp_path, capsys):
    record = trial(0, valid=0.5)
    Store(tmp_path).add(record)
    assert main(["show", record.run_id, "--records", str(tmp_path)]) == 2
    assert "is a trial of the study aaaaaaaaaaaa, but tables have no rows of trials" in capsys.readouterr().err


def test_records_are_compared_without_trials_and_other_settings_are_a_change():
    before = [trial(0, valid=0.5), *(chosen(seed) for seed in (1, 2, 3))]
    assert [finding for row in difference(before, before) for finding in row.findings] == []
    after = [trial(0, valid=0.5), trial(1, valid=0.9), *(chosen(seed, rate=0.03) for seed in (1, 2, 3))]
    ((finding,),) = [row.findings for row in difference(before, after)]
    assert finding.kind == "changed"
    assert "budget.learning_rate 0.002 became 0.03" in finding.text
    with pytest.raises(ValueError, match="must hold at least one record"):
        difference([trial(0, valid=0.5)], before)


def test_a_trial_and_a_run_of_the_same_spec_are_no_repetition(tmp_path):
    from attn_zoo.records.verify import verify

    shared = trial(0, valid=0.5)
    Store(tmp_path).add(shared)
    Store(tmp_path).add(replace(shared, tuning=None, scores={**shared.scores, "test": 0.4}))
    assert not [finding for finding in verify(tmp_path).findings if finding.kind in ("repeated", "copied")]
    Store(tmp_path).add(replace(shared, chance=0.2))
    assert [finding.kind for finding in verify(tmp_path).findings if finding.kind in ("repeated", "copied")] == ["repeated"]
