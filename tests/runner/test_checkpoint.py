"""Resuming from checkpoints: an interrupted run ends with the same bits as an uninterrupted one, and loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Command
from PIL import Image
from run_helpers import CutShort, Quiet
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from attn_zoo import plugin_files
from attn_zoo.records import Budget, ModelSpec, RunRecord, RunSpec, Store
from attn_zoo.records.store import CHECKPOINT
from attn_zoo.records.verify import verify
from attn_zoo.runner import checkpoint as module
from attn_zoo.runner import resolve_spec, run
from attn_zoo.runner.checkpoint import Checkpoint, CheckpointError
from attn_zoo.runner.interrupts import PATIENCE, Interrupts, asked

LISTOPS = {"length": 24, "train": 60, "valid": 20, "test": 20}


def spec(attention: str = "softmax", task: str = "listops", **rest: Any) -> RunSpec:
    budget = Budget(steps=13, batch_size=16, evaluate_every=4, warmup_steps=3)
    rest.setdefault("task_options", LISTOPS if task == "listops" else {})
    model = ModelSpec(**{"dim": 16, "heads": 2, "dropout": 0.1, **rest.pop("model", {})})
    return resolve_spec(RunSpec(attention=attention, task=task, model=model, budget=budget, device="cpu", **rest))


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    folder, chance = tmp_path_factory.mktemp("images"), torch.Generator().manual_seed(0)
    for part, count in (("train", 40), ("test", 10)):
        for kind in ("stripes", "spots"):
            (folder / part / kind).mkdir(parents=True)
            for at in range(count):
                pixels = torch.randint(256, (8, 8, 3), generator=chance, dtype=torch.uint8).numpy()
                Image.fromarray(pixels).save(folder / part / kind / f"{at}.png")
    return folder


IMAGES = {"side": 8, "patch": 4, "classes": 2, "valid": 0.2, "augment": "crop_flip"}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "augmented, redrawn": ("performer", "image_folder", {"task_options": IMAGES, "options": {"redraw": 4}}),
    "redrawn hashes": ("reformer", "listops", {"options": {"redraw": 5, "dropout": 0.1}}),
    "one tensor in all layers": ("linformer", "listops", {"options": {"projected_length": 4, "sharing": "layerwise"}}),
    "learnt without gradient": ("routing", "listops", {}),
}


def kept(checkpoint: Checkpoint) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    with safe_open(checkpoint.path, framework="pt") as file:
        facts = json.loads(file.metadata()["attn_zoo"])["facts"]
    return load_file(checkpoint.path), facts


def without_clock(facts: dict[str, Any]) -> dict[str, Any]:
    curve = [{name: value for name, value in point.items() if name != "train_seconds"} for point in facts["curve"]]
    return {**facts, "curve": curve, "environment": None, "resumed": None, "peak_bytes": None}


@pytest.mark.parametrize("case", CASES)
def test_a_run_cut_short_twice_comes_to_the_same_bits(case, images, tmp_path):
    attention, task, rest = CASES[case]
    asked_for, where = spec(attention, task, **rest), {"path": str(images)} if task == "image_folder" else {}
    whole = Checkpoint(tmp_path, "whole", every=13, minutes=0)
    record = run(asked_for, Quiet(), where, whole)
    assert record.status == "done", record.reason

    for after in (6, 9):  # resumes from the checkpoint of step 5, in the middle of an epoch, then from that of step 8
        begun = Checkpoint(tmp_path, "cut", every=5 if after == 6 else 4, minutes=0)
        begun.open()
        with pytest.raises(KeyboardInterrupt):
            run(asked_for, CutShort(after), where, begun)
    torch.manual_seed(99)
    last = Checkpoint(tmp_path, "cut", every=13, minutes=0)
    assert str(last.open()).startswith("goes on after step 8")
    again = run(asked_for, Quiet(), where, last)

    assert again.scores == record.scores
    assert without_clock({"curve": again.curve}) == without_clock({"curve": record.curve})
    (tensors, facts), (theirs, other) = kept(whole), kept(last)
    assert without_clock(facts) == without_clock(other)
    assert tensors.keys() == theirs.keys() and len(tensors) > 60
    for name in tensors.keys() - {"clock.step_seconds"}:
        assert torch.equal(tensors[name], theirs[name]), name
    assert len(theirs["clock.step_seconds"]) == len(tensors["clock.step_seconds"]) == 12, "the second step is profiled, not timed"
    assert [part["step"] for part in again.environment["resumed"]] == [5, 8]
    assert again.measured["train_seconds"] == pytest.approx(float(theirs["clock.step_seconds"].sum()))
    assert RunRecord.from_dict(json.loads(json.dumps(again.to_dict()))).environment == again.environment


def test_each_part_of_the_state_is_needed(images, tmp_path):
    """Resuming with any one part of the state of another step changes the final weights: each part is needed and compared."""
    attention, task, rest = CASES["augmented, redrawn"]
    asked_for, where = spec(attention, task, **rest), {"path": str(images)}
    whole = Checkpoint(tmp_path, "whole", every=13, minutes=0)
    run(asked_for, Quiet(), where, whole)
    cut = Checkpoint(tmp_path, "cut", every=7, minutes=0)
    with pytest.raises(KeyboardInterrupt):
        run(asked_for, CutShort(8), where, cut)
    original = cut.path.read_bytes()
    fresh = Checkpoint(tmp_path, "fresh", every=1, minutes=0)
    with pytest.raises(KeyboardInterrupt):
        run(asked_for, CutShort(1), where, fresh)
    (of_first_step, facts_of_first_step), (expected, _) = kept(fresh), kept(whole)
    for group in ("model.", "optimizer.", "order.epoch", "order.chance", "random", "at", "schedule", "rates"):
        cut.path.write_bytes(original)
        tensors, facts = kept(cut)
        if group in facts:
            facts[group] = facts_of_first_step[group]
        else:
            tensors |= {name: tensor for name, tensor in of_first_step.items() if name.startswith(group)}
        Checkpoint._write(cut, tensors, facts)
        spoilt = Checkpoint(tmp_path, "cut", every=13, minutes=0)
        assert str(spoilt.open()).startswith("goes on after step 7"), group
        run(asked_for, Quiet(), where, spoilt)
        found, _ = kept(spoilt)
        assert any(not torch.equal(found[name], expected[name]) for name in expected if name.startswith("model.")), group


SMALL = ["task=listops", *(f"task.{name}={value}" for name, value in LISTOPS.items()), "model.dim=16", "model.heads=2"]
LONG = ["run", "attention=performer", "attention.redraw=7", "model.dropout=0.1", "report=false", *SMALL]
LONG += ["budget.steps=40", "budget.evaluate_every=20", "budget.batch_size=16", "checkpoint.every=5"]


def losses(folder: Path) -> tuple[list[tuple[float, float]], dict[str, float]]:
    (record,), damaged = Store(folder / "runs").load()
    assert damaged == [] and record.status == "done", record.reason
    return [(point["train_loss"], point["valid"]) for point in record.curve], dict(record.scores)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    status, _, errors = Command(*LONG, folder=folder).end()
    assert status == 0, errors
    assert [path.suffix for path in (folder / "runs").iterdir()] == [".json"], "its checkpoint is gone with the record"
    return losses(folder)


def checkpoints(folder: Path) -> list[Path]:
    return list((folder / "runs").glob(f".*{CHECKPOINT}"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_is_killed_or_told_to_end_goes_on(number, uninterrupted, tmp_path):
    first = Command(*LONG, folder=tmp_path)
    first.wait_for(lambda: checkpoints(tmp_path))
    os.kill(first.pid, number)
    status, output, errors = first.end()
    assert status == {signal.SIGKILL: -9, signal.SIGINT: 130}[number], errors
    assert list((tmp_path / "runs").glob("*.json")) == []
    assert Store(tmp_path / "runs").load() == ([], []), "a checkpoint is no record"
    (path,) = checkpoints(tmp_path)
    step = json.loads(safe_open(path, framework="pt").metadata()["attn_zoo"])["facts"]["step"]
    assert 5 <= step < 40
    status, output, errors = Command(*LONG, folder=tmp_path).end()
    assert status == 0, errors
    assert f"performer on listops, seed 1: goes on after step {step}, from a checkpoint of " in output
    assert losses(tmp_path) == uninterrupted
    (record,), _ = Store(tmp_path / "runs").load()
    assert [part["step"] for part in record.environment["resumed"]] == [step]
    assert checkpoints(tmp_path) == [] and verify(tmp_path / "runs").clean


def cut_short(folder: Path) -> Checkpoint:
    checkpoint = Checkpoint(folder, "known", every=3, minutes=0)
    with pytest.raises(KeyboardInterrupt):
        run(spec(), CutShort(4), None, checkpoint)
    return checkpoint


def flipped(checkpoint: Checkpoint) -> None:
    data = bytearray(checkpoint.path.read_bytes())
    data[-100] ^= 1
    checkpoint.path.write_bytes(data)


def truncated(checkpoint: Checkpoint) -> None:
    checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:-5000])


def rewritten(**changes: Any) -> Any:
    def rewrite(checkpoint: Checkpoint) -> None:
        with safe_open(checkpoint.path, framework="pt") as file:
            header = json.loads(file.metadata()["attn_zoo"])
        save_file(load_file(checkpoint.path), checkpoint.path, metadata={"attn_zoo": json.dumps({**header, **changes})})

    return rewrite


def no_header(checkpoint: Checkpoint) -> None:
    save_file({"weights": torch.ones(3)}, checkpoint.path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (flipped, "the checkpoint is damaged: its content does not match its digest"),
        (truncated, "is damaged"),
        (no_header, "is damaged"),
        (rewritten(torch="1.0"), "the checkpoint was written with torch 1.0, but torch"),
        (rewritten(attn_zoo="0.0"), "the checkpoint was written with attn_zoo 0.0"),
        (rewritten(run_id="another"), "the checkpoint belongs to another run (another)"),
        (rewritten(format=7), "but has format 7"),
    ],
)
def test_a_checkpoint_of_no_use_is_put_aside_and_named(spoil, words, tmp_path):
    spoil(cut_short(tmp_path))
    again = Checkpoint(tmp_path, "known", every=0, minutes=0)
    before = again.path.read_bytes()
    said = str(again.open())
    assert words in said and said.endswith("starts again from step 0")
    (aside,) = tmp_path.glob(".known.checkpoint.*.unused")
    assert aside.name in said and aside.read_bytes() == before and not again.path.exists()
    record = run(spec(), Quiet(), None, again)
    assert record.status == "done" and "resumed" not in record.environment


def test_a_checkpoint_of_a_plugin_that_has_changed_is_put_aside(tmp_path, monkeypatch):
    plugin, folder = tmp_path / "mine.py", tmp_path / "runs"
    folder.mkdir()
    plugin.write_text("FIRST = 1\n")
    monkeypatch.setenv(plugin_files.VARIABLE, str(plugin))
    cut_short(folder)
    assert str(Checkpoint(folder, "known").open()).startswith("goes on after step")
    plugin.write_text("FIRST = 2\n")
    said = str(Checkpoint(folder, "known").open())
    assert "mine.py has changed since the checkpoint was written" in said and said.endswith("starts again from step 0")
    assert list(folder.glob(".known.checkpoint.*.unused"))


def test_a_checkpoint_of_other_data_is_put_aside(images, tmp_path, capsys):
    other = tmp_path / "images"
    shutil.copytree(images, other)
    (other / "train" / "stripes" / "0.png").unlink()
    same = spec("softmax", "image_folder", task_options=IMAGES)
    with pytest.raises(KeyboardInterrupt):
        run(same, CutShort(4), {"path": str(images)}, Checkpoint(tmp_path, "known", every=3, minutes=0))
    for folder, changed in ((images, False), (other, True)):
        again = Checkpoint(tmp_path, "known", every=3, minutes=0)
        assert str(again.open()).startswith("goes on after step")
        with pytest.raises(KeyboardInterrupt):
            run(same, CutShort(7), {"path": str(folder)}, again)
        assert ("the data of the task have changed since it was written" in capsys.readouterr().err) == changed
        assert bool(list(tmp_path.glob(".known.checkpoint.*.unused"))) == changed
        assert (kept(again)[1]["resumed"] == []) == changed


def test_a_checkpoint_of_another_network_is_refused_and_kept(tmp_path):
    cut_short(tmp_path)
    again = Checkpoint(tmp_path, "known")
    again.open()
    with pytest.raises(CheckpointError, match=r"must have the same shape .*Delete .* to start again from step 0"):
        run(spec("none"), Quiet(), None, again)
    assert again.path.exists()


def test_a_disk_that_takes_no_checkpoint_costs_no_run(tmp_path):
    larger = [*LONG, "model.dim=128", "budget.steps=10", "budget.evaluate_every=10"]
    status, _, errors = Command(*larger, folder=tmp_path, longest_file=2**19).end()
    assert status == 0, errors
    assert errors.count("the checkpoint after step 5 could not be written") == 1 == errors.count("could not be written")
    assert [path.suffix for path in (tmp_path / "runs").iterdir()] == [".json"]


def test_checkpoints_come_by_steps_and_by_the_clock(tmp_path, monkeypatch):
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    by_clock, by_steps = Checkpoint(tmp_path, "a", every=0, minutes=10), Checkpoint(tmp_path, "b", every=3, minutes=0)
    assert [by_steps.due(step) for step in (1, 2, 3, 4, 6)] == [False, False, True, False, True]
    assert not by_clock.due(3)
    clock.now = 599.0
    assert not by_clock.due(4)
    clock.now = 600.0
    assert by_clock.due(5) and not by_steps.due(5)
    for bad in ({"every": -1}, {"minutes": -0.5}, {"minutes": float("nan")}):
        with pytest.raises(ValueError, match=r"checkpoint\.(every|minutes)"):
            Checkpoint(tmp_path, "c", **bad)


def test_without_checkpoints_signals_act_as_ever(tmp_path):
    off = [*LONG, "checkpoint.every=0", "checkpoint.minutes=0", "budget.steps=100000"]
    command = Command(*off, folder=tmp_path)
    command.wait_for(lambda: list((tmp_path / "runs").glob(".*.claim")))
    os.kill(command.pid, signal.SIGTERM)
    assert command.end()[0] == -signal.SIGTERM
    assert checkpoints(tmp_path) == []


@pytest.fixture
def default_sigterm():
    """Default action of SIGTERM during a test; other tests' libraries, such as Ray, leave handlers of their own in the process."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("default_sigterm")
def test_signals_in_quick_succession_are_one_and_a_later_one_acts(monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as held:
        assert asked() == 0
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert asked() == signal.SIGTERM
        later = time.monotonic() + PATIENCE + 1
        monkeypatch.setattr(time, "monotonic", lambda: later)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert held.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) is before and asked() == 0


def test_an_error_of_the_run_does_not_hide_a_signal_that_waits():
    def fail() -> None:
        with Interrupts():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("of the run")

    with pytest.raises(KeyboardInterrupt):
        fail()


def test_a_signal_that_somebody_else_handles_stays_theirs():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with Interrupts():
            signal.raise_signal(signal.SIGTERM)
            assert asked() == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
