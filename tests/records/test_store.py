"""Storage of records: half-written and damaged files, full disks, foreign files, two writers at once."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from make import make_record

from attn_zoo.cli.config import Settings
from attn_zoo.cli.job import Command, _add
from attn_zoo.records import SCHEMA, RecordError, RunRecord, RunSpec, Store, describe_environment, environment, read_record
from attn_zoo.records.environment import command_line
from attn_zoo.records.record import MOST_BYTES
from attn_zoo.records.store import is_claimed


def test_a_record_comes_back_as_it_was(tmp_path):
    record = make_record()
    path = Store(tmp_path).add(record)
    assert Store(tmp_path).load() == ([record], [])
    assert path.name.startswith(f"softmax-digits-s1-{record.run_id}-")
    assert path.read_text(encoding="utf-8").endswith("}\n")


def test_a_diverged_loss_becomes_null_not_nan(tmp_path):
    curve = ({"step": 1, "train_loss": math.nan, "valid": math.inf},)
    path = Store(tmp_path).add(make_record(status="diverged", curve=curve))
    assert json.loads(path.read_text(encoding="utf-8"))["curve"] == [{"step": 1, "train_loss": None, "valid": None}]
    assert "NaN" not in path.read_text(encoding="utf-8")
    assert len(Store(tmp_path).load()[0]) == 1


def test_what_no_reader_would_accept_is_written_in_a_form_that_it_does(tmp_path):
    curve = ({"step": 1, "train_loss": 2.5, "valid": 1e30},)
    store = Store(tmp_path)
    store.add(make_record(curve=curve, environment={"command": "attn-zoo run plugin=caf\udce9.py"}))
    (record,), damaged = store.load()
    assert damaged == [] and record.curve[0]["valid"] is None
    assert record.environment["command"] == "attn-zoo run plugin=caf\\udce9.py"


def test_a_run_whose_record_no_reader_would_accept_is_recorded_as_failed(tmp_path):
    for odd in (make_record(test=5.0), make_record(counted={"parameters": 0}), make_record(warnings=("x" * MOST_BYTES,))):
        with pytest.raises(RecordError):
            Store(tmp_path).add(odd)
        record, path = _add(Command(Settings(records=str(tmp_path)), ("attn-zoo",)), odd)
        assert read_record(path) == record and record.status == "failed"
        assert "the record of this run is not valid" in str(record.reason)
    record, path = _add(Command(Settings(records=str(tmp_path)), ("attn-zoo",)), make_record())
    assert read_record(path) == record and record.scores == make_record().scores


def test_files_of_hybrids_have_plain_names_of_bounded_length(tmp_path):
    pattern = "+".join(["softmax", "linear*2"] * 30)
    path = Store(tmp_path).add(make_record(pattern))
    assert re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", path.name)


@pytest.mark.parametrize(
    ("status", "final"),
    [("done", True), ("diverged", True), ("refused", True), ("failed", False), ("out_of_memory", False), ("timed_out", False)],
)
def test_a_second_start_skips_what_would_come_out_the_same(tmp_path, status, final):
    store = Store(tmp_path)
    record = make_record(status=status)
    assert not store.finished(record.run_id)
    store.add(record)
    assert store.finished(record.run_id) is final
    assert not store.finished(make_record(seed=2).run_id)


def test_records_in_folders_within_count(tmp_path):
    Store(tmp_path / "a" / "b").add(make_record())
    Store(tmp_path / "c").add(make_record(seed=2))
    assert len(Store(tmp_path).load()[0]) == 2


def test_a_full_disk_leaves_no_half_file_and_loses_nothing(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.add(make_record())
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(OSError, match=r"No space left on device.*Make room"):
        store.add(make_record(seed=2))
    assert len(list(tmp_path.iterdir())) == 1
    assert len(store.load()[0]) == 1


def test_an_unwritable_folder_is_refused_before_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(NotADirectoryError, match=r"is a file. Choose another folder with records=FOLDER"):
        Store(tmp_path / "file").check_writable()
    with pytest.raises(OSError, match="cannot be written"):
        Store(tmp_path / "file" / "below").check_writable()
    monkeypatch.setattr("tempfile.NamedTemporaryFile", lambda **_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(OSError, match=r"Permission denied.*records=FOLDER"):
        Store(tmp_path / "read-only").check_writable()


def _write(folder: Path, first: int) -> None:
    for seed in range(first, first + 25):
        Store(folder).add(make_record(seed=seed))


def test_two_processes_write_into_one_folder(tmp_path):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(tmp_path, first)) for first in (0, 25)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    records, damaged = Store(tmp_path).load()
    assert sorted(r.spec.seed for r in records) == list(range(50))
    assert damaged == []


def test_a_process_that_asks_who_does_a_run_does_not_keep_others_from_it(tmp_path, monkeypatch):
    path = Store(tmp_path).claim_path("0" * 16)
    with path.open("a", encoding="utf-8") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)

        def answered(path: Path) -> bool:
            fcntl.flock(asking, fcntl.LOCK_UN)
            return is_claimed(path)

        monkeypatch.setattr("attn_zoo.records.store.is_claimed", answered)
        with Store(tmp_path).claim("0" * 16) as ours, Store(tmp_path).claim("0" * 16) as again:
            assert ours and not again


def test_records_of_a_task_or_an_attention_on_it_are_read_alone(tmp_path):
    store = Store(tmp_path)
    for attention, task in (("linear", "mqar"), ("linear", "copying"), ("2*linear+softmax", "mqar")):
        store.add(make_record(attention, task))
    (tmp_path / "linear-copying-s1-broken.json").write_text("{", encoding="utf-8")
    assert {record.spec.attention for record in store.load("mqar")[0]} == {"linear", "2*linear+softmax"}
    ((record,), damaged) = store.load("mqar", "2*linear+softmax")
    assert (record.spec.attention, damaged) == ("2*linear+softmax", []), "other files are not read"
    assert store.has(record.run_id) and not store.has("0" * 16)


def test_the_present_schema_keeps_loading():
    record = read_record(Path(__file__).parent / "fixtures" / f"schema-{SCHEMA}.json")
    assert record.scores["test"] > 0 and record.implementation == "sdpa"


@pytest.mark.parametrize(
    ("schema", "advice"), [(SCHEMA - 1, "Repeat the run, because"), (SCHEMA + 1, "Install the newest attn-zoo")]
)
def test_another_schema_is_refused_with_what_to_do(schema, advice):
    with pytest.raises(RecordError, match=f"the schema must be {SCHEMA}; got {schema}. {advice}"):
        RunRecord.from_dict({**make_record().to_dict(), "schema": schema})


def test_run_ids_depend_on_everything_that_decides_a_result():
    spec = RunSpec(attention="a", task="t", options={"k": 1})
    same = RunSpec(attention="a", task="t", options={"k": 1})
    assert spec.run_id("1") == same.run_id("1") == RunSpec.from_dict(json.loads(json.dumps(spec.to_dict()))).run_id("1")
    others = [
        replace(spec, seed=2),
        replace(spec, options={"k": 2}),
        replace(spec, implementation="sdpa"),
        replace(spec, device="cuda"),
    ]
    others += [replace(spec, budget=replace(spec.budget, steps=1)), replace(spec, model=replace(spec.model, dim=32))]
    assert len({spec.run_id("1"), spec.run_id("2"), *(o.run_id("1") for o in others)}) == 8


def test_a_done_record_needs_a_score_and_no_reason():
    with pytest.raises(RecordError, match="test score"):
        make_record(scores={})
    with pytest.raises(RecordError, match="reason must be null if status is done"):
        make_record(reason="why not")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 10, "heads": 4}, "must be a multiple of"),
        ({"heads": 0}, "an integer >= 1"),
        ({"dropout": 1.0}, "must be at least 0 and less than 1"),
        ({"mlp_ratio": 0}, "above 0"),
    ],
)
def test_bad_models_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(RunSpec("a", "t").model, **changes)


@pytest.mark.parametrize(
    "changes", [{"steps": 0}, {"learning_rate": 0.0}, {"learning_rate": math.nan}, {"warmup_steps": -1}, {"clip_norm": 0.0}]
)
def test_bad_budgets_are_refused(changes):
    with pytest.raises(ValueError, match=f"budget.{next(iter(changes))}"):
        replace(RunSpec("a", "t").budget, **changes)


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("records=/home/o'brien/my runs, old/a[1]", "records=.../a[1]"),
        ("train=[/home/a/b, /c/d]", "train=[.../b, .../d]"),
        ("train=/home/a/b,/c/d", "train=.../b,.../d"),
        ("plugin={one:/home/a/b.py,two:'/c/d.py'}", "plugin={one:.../b.py,two:'.../d.py'}"),
        ("attention=linformer[init=pooling],softmax", "attention=linformer[init=pooling],softmax"),
    ],
)
def test_paths_are_left_out_of_commands_whatever_letters_they_have(word, kept):
    assert command_line(["/home/a/attn-zoo", "run", word]) == f"attn-zoo run {kept}"


def test_code_is_changed_by_uncommitted_code_and_not_by_records(tmp_path, monkeypatch):
    for file in ("attn_zoo/module.py", "results/records.jsonl"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text("before", encoding="utf-8")
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "attn_zoo" / "module.py"))
    found = []
    for file in ("results/records.jsonl", "attn_zoo/module.py"):
        (tmp_path / file).write_text("after", encoding="utf-8")
        found.append(environment._commit.__wrapped__()[1])
    assert found == [False, True]


def test_the_environment_names_versions_and_neither_people_nor_places(monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["/home/somebody/bin/attn-zoo", "run", "records=/home/somebody/secret/runs", "train=[/home/a/b,/c/d]"]
    )
    found = describe_environment("cpu")
    assert found["command"] == "attn-zoo run records=.../runs train=[.../b,.../d]"
    assert found["torch"]
    assert found["cores"] >= 1
    assert found["memory_bytes"] > 2**28
    text = json.dumps(found)
    for secret in (os.uname().nodename, str(Path.home()), os.environ.get("USER", "somebody"), "somebody"):
        assert len(secret) < 3 or secret not in text or secret == "root"
