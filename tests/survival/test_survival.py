"""Sweeps that are killed, out of disk, without permission, run twice at once or damaged keep their records and resume."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import re
import resource
import shutil
import signal
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from commands import Command
from make import make_record

from attn_zoo.records import Store
from attn_zoo.records.verify import verify

SMALL = ["task=digits", "budget.steps=12", "budget.evaluate_every=4", "model.dim=16", "model.heads=2"]
SWEEP = ["run", "-m", "attention=softmax,none", "seed=1,2,3", *SMALL]
WHOLE = {f"{name} on digits, seed {seed}" for name in ("softmax", "none") for seed in (1, 2, 3)}


def recorded(folder: Path) -> set[str]:
    """Return the recorded runs, and assert that every record is whole."""
    records, damaged = Store(folder / "runs").load()
    assert damaged == []
    assert {record.status for record in records} <= {"done"}
    return {f"{r.spec.attention} on {r.spec.task}, seed {r.spec.seed}" for r in records}


def said(output: str) -> set[str]:
    """Return the runs that the command reported as done."""
    return set(re.findall(r"^(.*): test accuracy", output, re.MULTILINE))


def check_complete(folder: Path) -> None:
    assert recorded(folder) == WHOLE
    assert len(list((folder / "runs").glob("*.json"))) == len(WHOLE), "no run is recorded twice"
    assert {finding.kind for finding in verify(folder / "runs").findings} <= {"leftover"}


def in_the_second_run(folder: Path) -> bool:
    """Return True if one run is in progress and another is recorded."""
    names = [path.name for path in (folder / "runs").glob("*.json")]
    claims = [path.name.strip(".").removesuffix(".claim") for path in (folder / "runs").glob(".*.claim")]
    return bool(names) and any(all(run_id not in name for name in names) for run_id in claims)


@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_kills_of_sweeps_with_checkpoints_lose_double_and_change_nothing(kills, tmp_path):
    """Kill sweeps with a checkpoint at every step until each is complete; assert that no record is lost, doubled or changed."""
    moments, sweep, killed = random.Random(22), [*SWEEP, "checkpoint.every=1", "report=false"], 0
    for turn in itertools.count():
        place = tmp_path / str(turn)
        place.mkdir()
        kept, before = dict[str, bytes](), set[str]()
        while killed < kills and len(kept) < len(WHOLE):
            command = Command(*sweep, folder=place)
            command.wait_to_hear()
            time.sleep(moments.uniform(0.0, 0.6))
            status, output, errors = command.kill()
            assert status in (0, -signal.SIGKILL), errors
            assert output.startswith(f"6 runs, {len(before)} of them recorded already, {6 - len(before)} to do")
            killed += status != 0
            after = recorded(place)
            assert before | said(output) <= after, "what was recorded and what was said to be done is there"
            assert len(after - before - said(output)) <= 1, "at most one was recorded when the kill kept it from being said"
            before = after
            found = {path.name: path.read_bytes() for path in (place / "runs").glob("*.json")}
            assert kept.items() <= found.items(), "what was recorded is there, to the bit"
            kept = found
            assert verify(place / "runs").clean
        assert Command(*sweep, folder=place).end()[0] == 0
        check_complete(place)
        assert kept.items() <= {path.name: path.read_bytes() for path in (place / "runs").glob("*.json")}.items()
        assert not list((place / "runs").glob(".*.checkpoint")), "recorded runs have no checkpoint"
        if killed >= kills:
            return


def _write(folder: Path, told: Connection) -> None:
    for seed in itertools.count():
        Store(folder).add(make_record(seed=seed))
        told.send(seed)


def test_a_writer_killed_in_the_middle_of_writing_leaves_whole_records_only(tmp_path):
    context, moments = multiprocessing.get_context("fork"), random.Random(21)
    cut_short = 0
    for turn in range(40):
        folder = tmp_path / str(turn)
        mine, told = context.Pipe(duplex=False)
        writer = context.Process(target=_write, args=(folder, told))
        writer.start()
        told.close()
        last = mine.recv()
        time.sleep(moments.uniform(0.0, 0.02))
        writer.kill()
        writer.join()
        with suppress(EOFError):
            while True:
                last = mine.recv()
        records, damaged = Store(folder).load()
        assert damaged == []
        assert len(records) in (last + 1, last + 2), "all that it told of, and at most the one after"
        cut_short += bool(list(folder.glob(".*.half")))
    assert cut_short, "some were killed while they wrote"


def test_a_disk_that_fills_up_in_a_sweep_loses_nothing(tmp_path):
    command = Command(*SWEEP, folder=tmp_path)
    command.wait_for(lambda: in_the_second_run(tmp_path))
    resource.prlimit(command.pid, resource.RLIMIT_FSIZE, (1000, 1000))
    status, output, errors = command.end()
    assert status == 2, errors
    assert "could not be written to 'runs' (File too large). Make room or choose another folder, then run the same" in errors
    assert "Traceback" not in errors
    kept = recorded(tmp_path)
    assert 1 <= len(kept) < 6
    assert said(output) == kept
    assert [path.name for path in (tmp_path / "runs").glob(".*")] == [], "nothing is left of the write that failed"
    _, output, _ = Command(*SWEEP, folder=tmp_path).end()
    assert output.startswith(f"6 runs, {len(kept)} of them recorded already")
    check_complete(tmp_path)


@pytest.mark.parametrize(
    ("limits", "why"),
    [({"longest_file": 1000}, "File too large"), ({"obedient": True}, "Permission denied")],
    ids=["full", "read-only"],
)
def test_a_folder_that_cannot_be_written_is_refused_before_work_starts(limits, why, tmp_path):
    path = Store(tmp_path / "runs").add(make_record())
    if "obedient" in limits:
        path.parent.chmod(0o500)
    status, output, errors = Command(*SWEEP, folder=tmp_path, **limits).end()
    assert status == 2, output
    assert f"the records folder 'runs' cannot be written ({why}). Choose another folder with records=FOLDER" in errors
    assert output == ""
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_folder_that_becomes_read_only_in_a_sweep_costs_not_even_the_run_in_flight(tmp_path):
    runs, aside = tmp_path / "runs", tmp_path / "aside"
    aside.mkdir()
    command = Command(*SWEEP, folder=tmp_path, obedient=True, temporary=aside)
    command.wait_for(lambda: in_the_second_run(tmp_path))
    runs.chmod(0o500)
    status, output, errors = command.end()
    runs.chmod(0o700)
    assert status == 2, output
    kept = recorded(tmp_path)
    assert 1 <= len(kept) < 6
    assert said(output) == kept
    (spare,) = aside.rglob("*.json")
    assert f"The record was written to {str(spare)!r} instead. Copy this file to the folder of records" in errors
    shutil.copy(spare, runs)
    _, output, _ = Command(*SWEEP, folder=tmp_path).end()
    assert output.startswith(f"6 runs, {len(kept) + 1} of them recorded already")
    check_complete(tmp_path)


def test_two_sweeps_at_once_share_the_runs_and_one_that_dies_claims_none(tmp_path):
    first, second = (Command(*SWEEP, folder=tmp_path) for _ in range(2))
    first.wait_for(lambda: in_the_second_run(tmp_path))
    _, of_first, _ = first.kill()
    status, of_second, errors = second.end()
    assert status == 0, errors
    assert len(recorded(tmp_path)) >= 5, "the other sweep did all but the run that the first was at"
    commands = [Command(*SWEEP, folder=tmp_path) for _ in range(2)]
    assert [command.end()[0] for command in commands] == [0, 0]
    check_complete(tmp_path)
    assert not said(of_first) & said(of_second), "none was done twice"


def test_a_truncated_record_is_named_left_out_and_run_again(tmp_path):
    few = ["run", "-m", "attention=none", "seed=1,2", *SMALL]
    assert Command(*few, folder=tmp_path).end()[0] == 0
    assert len(recorded(tmp_path)) == 2
    path = next((tmp_path / "runs").glob("*-s2-*.json"))
    path.write_text(path.read_text(encoding="utf-8")[:500], encoding="utf-8")
    _, output, _ = Command("leaderboard", folder=tmp_path).end()
    assert path.name in output
    status, output, errors = Command(*few, folder=tmp_path).end()
    assert status == 0, errors
    assert output.startswith("2 runs, 1 of them recorded already, 1 to do")
    records, damaged = Store(tmp_path / "runs").load()
    assert sorted(record.spec.seed for record in records) == [1, 2]
    assert [item.path for item in damaged] == [path]
    status, output, _ = Command("records", "verify", folder=tmp_path).end()
    assert status == 1
    assert path.name in output


def test_hydra_leaves_nothing_among_the_records(tmp_path):
    for words in (["run", "attention=none", "seed=1", *SMALL], ["run", "-m", "attention=none", "seed=1,2", *SMALL]):
        assert Command(*words, folder=tmp_path).end()[0] == 0
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".json"}
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
