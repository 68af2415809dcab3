"""``attn-zoo records rerun``: which runs are drawn, equal scores reported as equal, one changed bit as different."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Command
from make import make_record

from attn_zoo.cli.main import main
from attn_zoo.cli.records import draw
from attn_zoo.records import RunRecord, Store
from attn_zoo.records.tuning import Tuning
from attn_zoo.registry import task_card

DATA = ["task=listops", "task.length=24", "task.train=100", "task.valid=50", "task.test=50"]  # needs neither timm nor scikit-learn
TINY = [*DATA, "budget.steps=2", "budget.evaluate_every=1", "seed=3", "records=runs"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """Folder with the records of two tiny runs of the command ``run``."""
    folder = tmp_path_factory.mktemp("rerun")
    status, _, errors = Command("run", "-m", "attention=softmax,linformer", *TINY, folder=folder).end()
    assert status == 0, errors
    return folder / "runs"


def rerun(folder: Path, into: Path, *words: str) -> int:
    return main(["records", "rerun", "--records", str(folder), "--into", str(into), *words])


def test_runs_done_anew_have_equal_scores(recorded, tmp_path, capsys):
    assert rerun(recorded, tmp_path / "again", "--cells", "5") == 0
    out, err = capsys.readouterr()
    assert [line.split(":")[0] for line in err.splitlines()] == ["repeating run 1 of 2", "repeating run 2 of 2"]
    first, second, last = out.splitlines()
    assert {line.split(" on listops, seed 3, run ")[0] for line in (first, second)} == {"softmax", "linformer"}
    assert all(": scores equal, test 0." in line for line in (first, second)) and last == "2 of 2 runs have equal scores"
    made, known = ({r.run_id: r for r in Store(root).load()[0]} for root in (tmp_path / "again", recorded))
    assert made.keys() == known.keys() and {r.source for r in made.values()}.isdisjoint(r.source for r in known.values())


def test_one_changed_bit_is_told_with_both_figures_and_what_changed_around_it(recorded, tmp_path, capsys):
    record = next(r for r in Store(recorded).load()[0] if r.spec.attention == "softmax")
    off = math.nextafter(record.scores["valid"], 1.0)
    curve = [{**point, "valid": off} if point["valid"] == record.scores["valid"] else point for point in record.curve]
    changed = {"scores": {**record.scores, "valid": off}, "environment": {**record.environment, "torch": "1.0"}}
    edited = replace(record, curve=curve, implementation="tiled", **changed)  # type: ignore[arg-type]
    Store(tmp_path / "edited").add(edited)
    assert rerun(tmp_path / "edited", tmp_path / "again") == 1
    out = " ".join(capsys.readouterr().out.split())
    changes = f"implementation tiled → {record.implementation}, torch 1.0 → {record.environment['torch']}"
    assert f"SCORES DIFFER: valid {off} → {record.scores['valid']} ({changes})" in out
    assert "0 of 1 runs have equal scores" in out


def test_a_run_that_cannot_be_done_is_no_equal_one(recorded, tmp_path, capsys):
    record = next(r for r in Store(recorded).load()[0] if r.spec.attention == "linformer")
    spec = replace(record.spec, options={**record.spec.options, "projected_length": -1})
    Store(tmp_path / "bad").add(replace(record, spec=spec, run_id=spec.run_id(task_card("listops").version)))
    assert rerun(tmp_path / "bad", tmp_path / "again") == 1
    assert "NOT DONE: " in (out := capsys.readouterr().out) and "projected_length" in out


def test_threads_are_those_of_the_record(recorded, tmp_path):
    record = Store(recorded).load()[0][0]
    threads = 1 if record.environment["threads"] > 1 else 2
    Store(tmp_path / "other").add(replace(record, environment={**record.environment, "threads": threads}))
    rerun(tmp_path / "other", tmp_path / "again")
    (again,) = Store(tmp_path / "again").load()[0]
    assert again.environment["threads"] == threads


def test_the_new_folder_holds_nothing_before(recorded, tmp_path, capsys):
    assert rerun(recorded, recorded) == 2
    assert "--into must be a new or empty folder" in capsys.readouterr().err
    (tmp_path / "file").write_text("x", encoding="utf-8")
    assert rerun(recorded, tmp_path / "file") == 2
    assert len(Store(recorded).load()[0]) == 2


def many() -> list[RunRecord]:
    return [make_record(name, seed=seed) for name in ("softmax", "linformer", "nystrom") for seed in range(8)]


def test_the_draw_follows_the_seed_and_no_order_of_files():
    ids = [record.run_id for record in draw(many(), 5, 0)]
    assert ids == [record.run_id for record in draw(many()[::-1], 5, 0)] and len(set(ids)) == 5
    assert ids != [record.run_id for record in draw(many(), 5, 1)]
    assert len(draw(many(), 100, 0)) == 24
    assert len(draw([*many(), *many()], 100, 0)) == 24, "a run that is recorded twice is one"


def test_only_runs_that_a_command_can_do_again_are_drawn():
    fit = make_record("softmax")
    trial = Tuning(study="s", space={"budget.learning_rate": "choice(1,2)"}, trial=0)
    unfit = [
        make_record("linformer", status="diverged"),
        replace(make_record("nystrom"), protocol="1.0"),
        replace(make_record("linear"), scores={"valid": 0.5}, tuning=trial),
    ]
    assert draw([fit, *unfit], 10, 0) == [fit]
    with pytest.raises(ValueError, match=r"at least one record must have status done .*; got 3 other records"):
        draw(unfit, 10, 0)
    with pytest.raises(ValueError, match="must be at least 1, because it is a number of runs; got 0"):
        draw([fit], 0, 0)
