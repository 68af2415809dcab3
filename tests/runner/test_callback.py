"""A callback follows a run and receives its record; it can neither change a record nor lose one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from run_helpers import Quiet

from attn_zoo.cli import main
from attn_zoo.cli.job import Watched, load_callback
from attn_zoo.cli.run import plan
from attn_zoo.records import Budget, ModelSpec, RunSpec, Store
from attn_zoo.runner import resolve_spec, run

SMALL = ["task=digits", "budget.steps=4", "budget.evaluate_every=2", "model.dim=16", "model.heads=2"]
LOGS = '''
import json
from pathlib import Path

import torch


class Logs:
    """Writes a line for every call."""

    def __init__(self, spec, run_id):
        self.lines, self.file = [["made", spec.attention, run_id]], Path(f"log-{run_id}.json")

    def start(self, label, steps):
        self.lines.append(["start", steps])

    def advance(self, step, loss, valid):
        self.lines.append(["advance", step, loss, valid])

    def stop(self):
        self.lines.append(["stop"])

    def finish(self, record, path):
        self.lines.append(["finish", record.scores["test"], str(path)])
        self.file.write_text(json.dumps(self.lines))


class Fails(Logs):
    def advance(self, step, loss, valid):
        if step == 2:
            raise OSError(28, "No space left on device")


class Draws(Logs):
    """Draws random numbers and writes them."""

    def advance(self, step, loss, valid):
        self.lines.append(torch.rand(()).item())

    def finish(self, record, path):
        self.file.write_text(json.dumps(self.lines[2:-1]))


class Refuses(Logs):
    def __init__(self, spec, run_id):
        raise RuntimeError("no login")
'''


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """Current folder with the file of callbacks, whose name is its own, because a process imports a name once."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"logs_{abs(hash(str(tmp_path)))}.py"
    file.write_text(LOGS)
    return file


def test_a_sweep_tells_a_callback_of_each_run(folder):
    callback = f"callback={folder.name}:Logs"
    assert main(["run", "-m", "attention=none", "seed=1,2", *SMALL, callback, "report=false"]) == 0
    records, _ = Store(Path("runs")).load()
    assert len(records) == 2
    for record in records:
        first, begun, *steps, ended, last = json.loads(Path(f"log-{record.run_id}.json").read_text())
        assert first == ["made", "none", record.run_id] and begun == ["start", 4] and ended == ["stop"]
        assert [step for _, step, _, _ in steps] == [1, 2, 3, 4]
        looks = {step: pytest.approx(valid) for _, step, _, valid in steps if valid is not None}
        assert {point["step"]: point["valid"] for point in record.curve} == looks
        assert last[1] == record.scores["test"] and Path(last[2]).name == record.source


def spec() -> RunSpec:
    budget = Budget(steps=4, batch_size=8, evaluate_every=2)
    small = {"length": 24, "train": 40, "valid": 20, "test": 20}
    return resolve_spec(RunSpec("none", "listops", task_options=small, model=ModelSpec(dim=16, heads=2), budget=budget))


def test_a_callback_that_fails_on_the_way_is_reported_once_and_costs_nothing(folder, capsys):
    watched = Watched(f"{folder.name}:Fails", spec(), "id")
    record = run(spec(), watched)
    watched.finish(record, Path("nowhere"))
    assert record.status == "done" and not list(Path().glob("log-*"))
    assert capsys.readouterr().err.count(f"callback {folder.name}:Fails failed and is not called again (OSError: [Errno 28]") == 1


def test_a_callback_that_draws_random_numbers_changes_no_result(folder):
    asked = replace(spec(), model=replace(spec().model, dropout=0.5))
    plain = run(asked, Quiet())
    watched = Watched(f"{folder.name}:Draws", asked, "id")
    record = run(asked, watched)
    watched.finish(record, Path("nowhere"))
    assert [point["train_loss"] for point in record.curve] == [point["train_loss"] for point in plain.curve]
    drawn = json.loads(Path("log-id.json").read_text())
    assert len(drawn) == len(set(drawn)) == 4, "each call draws new numbers"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("logs", "callback= must be FILE.py:NAME"),
        ("nowhere.py:Logs", "the file nowhere.py does not exist"),
        ("{file}:Log", "this file has no class 'Log'"),
        ("{file}:Refuses", "could not be created: RuntimeError: no login. Mend the class, or leave callback= out"),
    ],
)
def test_a_callback_that_cannot_be_made_is_refused_before_the_run(folder, word, says, capsys):
    assert main(["run", "attention=none", *SMALL, f"callback={word.format(file=folder.name)}"]) == 2
    assert says in " ".join(capsys.readouterr().err.split()) and not list(Path("runs").glob("*.json"))


def test_a_callback_is_loaded_by_file_and_name(folder):
    assert load_callback(f"{folder}:Logs").__name__ == "Logs"


def test_who_is_told_and_what_is_kept_on_the_way_is_no_part_of_what_is_run():
    plain = plan(SMALL)
    told = plan([*SMALL, "callback=tracker.py:Tracker", "checkpoint.every=5", "checkpoint.minutes=0"])
    assert plain is not None and told is not None and plain.specs == told.specs
