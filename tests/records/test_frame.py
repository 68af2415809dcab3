"""The dataframe of runs: what a user finds in it, and what is in it of records of every kind."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest
from make import make_record, records_of, stored

from attn_zoo.records import Budget, Tuning, frame


def test_a_run_is_a_line_and_a_fact_a_column():
    runs = frame([make_record("linformer", seed=3, test=0.75, spec_options={"k": 8}), make_record(status="diverged")])
    first, second = runs.iter_rows(named=True)
    assert (first["attention"], first["task"], first["seed"], first["test"]) == ("linformer", "digits", 3, 0.75)
    assert json.loads(first["options"]) == {"k": 8} and first["control"] is False and first["machine"].startswith("Some CPU")
    assert (second["status"], second["reason"], second["test"]) == ("diverged", "because of diverged", None)


def test_runs_until_a_criterion_have_how_soon_they_reached_it():
    until = Budget(schedule="constant", until="criterion", ceiling=1.0)
    reached = {"50": {"steps": 10, "seconds": 1.5, "flops": 2e9}, "90": {"steps": 20, "seconds": 3.0}, "99": None}
    (run,) = frame([make_record(spec_budget=until, stopped="cap", reached=reached, flat=True)]).iter_rows(named=True)
    assert (run["stopped"], run["flat"], run["steps_to_50"], run["flops_to_50"]) == ("cap", True, 10, 2e9)
    assert (run["seconds_to_90"], run["flops_to_90"], run["steps_to_99"]) == (3.0, None, None)
    (fixed,) = frame([make_record()]).iter_rows(named=True)
    assert fixed["stopped"] is fixed["flat"] is fixed["steps_to_50"] is None


def test_a_folder_and_a_packed_file_give_equal_frames(tmp_path):
    from attn_zoo.records.files import pack

    records = stored(tmp_path / "runs", [make_record(seed=seed) for seed in (1, 2)])
    (tmp_path / "runs" / "cut.json").write_text("{", encoding="utf-8")
    pack(records, tmp_path / "runs.jsonl.xz")
    assert frame(tmp_path / "runs").equals(frame(str(tmp_path / "runs.jsonl.xz")))
    assert frame(tmp_path / "nowhere").height == 0 and "attention" in frame([]).columns


def test_numbers_that_are_not_finite_are_null_and_unknown_measurements_have_columns():
    odd = make_record(scores={"test": float("nan"), "valid": float("inf"), "train": 0.5, "test: far": 0.25})
    odd = replace(odd, measured={**odd.measured, "joules": 5.0}, counted={**odd.counted, "parameters": 2**64})
    (run,) = frame([odd]).iter_rows(named=True)
    assert run["test"] is run["valid"] is None and run["train"] == 0.5 and run["joules"] == 5.0
    assert run["parts"] == [{"part": "far", "score": 0.25}] and run["parameters"] == 2**63 - 1


def test_trials_and_text_that_is_not_unicode_are_kept():
    tuning = Tuning("study", {"budget.learning_rate": "0.1,0.2"}, trial=4)
    trial = make_record(tuning=tuning, scores={"valid": 0.5, "train": 0.5}, environment={"command": "run \udcff"})
    (run,) = frame([trial]).iter_rows(named=True)
    assert (run["study"], run["trial"], run["command"]) == ("study", 4, "run \\udcff")
    assert json.loads(run["tuning"])["space"] == tuning.space


def test_the_documented_example_runs(tmp_path):
    stored(tmp_path, records_of({"softmax": (0.8,), "linformer": (0.6,)}))
    runs = frame(tmp_path).filter(status="done", task="digits")
    means = runs.group_by("attention").agg(pl.col("test").mean()).sort("attention")
    assert means.to_dicts() == [{"attention": "linformer", "test": 0.6}, {"attention": "softmax", "test": 0.8}]


def test_what_is_not_a_record_is_named():
    with pytest.raises(ValueError, match=r"records must be RunRecord objects.*got 3"):
        frame([3])  # type: ignore[list-item]
