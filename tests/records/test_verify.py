"""``records verify`` finds each fault of a folder of records, under its own name, and changes no file."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make import make_record
from patience import HANG

from attn_zoo.cli import main
from attn_zoo.leaderboard import leaderboard
from attn_zoo.records import PROTOCOLS, Store
from attn_zoo.records.spec import digest_of
from attn_zoo.records.verify import Finding, verify


def kinds(folder: Path) -> dict[str, Finding]:
    findings = verify(folder).findings
    found = {finding.kind: finding for finding in findings}
    assert len(found) == len(findings), findings
    return found


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any], *, signed: bool = True) -> None:
    """Change a record in its file; ``signed`` gives it the digest of its new content."""
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    digest = data.pop("digest")
    path.write_text(json.dumps({**data, "digest": digest_of(data) if signed else digest}), encoding="utf-8")


def filled(folder: Path) -> list[Path]:
    """Write three valid records and return their paths."""
    return [Store(folder).add(make_record(seed=seed, test=0.8 + seed / 100)) for seed in (1, 2, 3)]


def test_a_good_folder_is_clean_and_failed_attempts_before_a_good_one_are_no_fault(tmp_path):
    filled(tmp_path)
    Store(tmp_path).add(make_record(seed=4, status="out_of_memory"))
    Store(tmp_path).add(make_record(seed=4, status="timed_out", data={}))
    Store(tmp_path).add(make_record(seed=4))
    (tmp_path / "README.md").write_text("about", encoding="utf-8")
    verdict = verify(tmp_path)
    assert (verdict.records, verdict.runs, verdict.findings, verdict.clean) == (6, 4, (), True)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda d: d.pop("scores"), "damaged", "does not fit its schema: Object missing required field `scores`"),
        (lambda d: d.update(schema=99), "damaged", "Install the newest"),
        (lambda d: d["scores"].update(test="high"), "damaged", "Expected `float`, got `str` - at `$.scores[...]`"),
        (lambda d: d["scores"].update(test=None), "damaged", "Expected `float`, got `null` - at `$.scores[...]`"),
        (lambda d: d.update(environment="here"), "damaged", "Expected `object`, got `str` - at `$.environment`"),
        (lambda d: d["data"]["test"].pop("digest"), "damaged", "missing required field `digest` - at `$.data[...]`"),
        (lambda d: d["reached"].update({"50": {"steps": -1}}), "damaged", "Expected `float` >= 0.0 - at `$.reached[...][...]`"),
        (lambda d: d["environment"].update(odd=[[1]]), "damaged", "Expected `object`, got `array` - at `$.environment[...][0]`"),
        (lambda d: d["spec"]["budget"].update(steps="all"), "damaged", "Expected `int`, got `str` - at `$.spec.budget.steps`"),
        (lambda d: d["measured"].update(train_seconds=0), "damaged", "measured.train_seconds must be above 0; got 0"),
        (lambda d: d.update(curve=[1]), "damaged", "Expected `object`, got `int` - at `$.curve[0]`"),
        (lambda d: d["spec"].update(seed=7), "edited", "the record was changed after it was written: its run_id"),
        (lambda d: d["spec"]["budget"].update(steps=1), "edited", "the record was changed after it was written: its run_id"),
        (lambda d: d["task_card"].update(version="2"), "edited", "the record was changed after it was written: its run_id"),
        (lambda d: d["task_card"].update(name="listops"), "edited", "card names the task 'listops', but its spec names 'digits'"),
        (lambda d: d["attention_card"].update(name="performer"), "edited", "card names the attention 'performer'"),
        (lambda d: d["scores"].update(valid=0.99), "edited", "validation score is 0.99, but its curve gives 0.81"),
        (lambda d: d["data"]["test"].update(digest="other"), "data differ", "the test split of digits"),
    ],
)
def test_a_record_that_was_tampered_with_is_named(tmp_path, change, kind, words):
    path = filled(tmp_path)[0]
    rewrite(path, change)
    found = kinds(tmp_path)
    assert set(found) == {kind}
    assert found[kind].files == (path.name,)
    assert words in found[kind].words
    assert not verify(tmp_path).clean


@pytest.mark.parametrize("change", [lambda d: d["scores"].update(test=0.99), lambda d: d["warnings"].append("none")])
def test_a_record_that_was_edited_without_its_digest_is_named_and_left_out(tmp_path, change):
    path = filled(tmp_path)[0]
    rewrite(path, change, signed=False)
    finding = kinds(tmp_path)["edited"]
    assert finding.files == (path.name,) and "does not match its digest" in finding.words
    records, left_out = Store(tmp_path).load()
    assert [record.spec.seed for record in records] == [2, 3]
    assert [item.path for item in left_out] == [path]
    assert "does not match its digest" in leaderboard(tmp_path)
    assert Store(tmp_path).find(make_record(seed=1).run_id) is None, "the same command does the run again"


def test_other_options_may_have_other_data(tmp_path):
    filled(tmp_path)
    other = {split: {"examples": 5, "digest": split} for split in ("train", "valid", "test")}
    Store(tmp_path).add(make_record(spec_task_options={"size": 4}, data=other))
    assert verify(tmp_path).clean


def test_a_copy_under_another_name_and_one_that_hides_are_named(tmp_path):
    path = filled(tmp_path)[0]
    (tmp_path / "old").mkdir()
    shutil.copy(path, tmp_path / "old" / path.name)
    found = kinds(tmp_path)
    assert set(found) == {"copied"}
    assert sorted(found["copied"].files) == [f"old/{path.name}", path.name]
    path.rename(tmp_path / "best.json")
    found = kinds(tmp_path)
    assert set(found) == {"copied", "renamed"}
    assert found["renamed"].files == ("best.json",)


def test_a_run_recorded_twice_says_whether_the_scores_agree(tmp_path):
    Store(tmp_path).add(make_record(test=0.8))
    Store(tmp_path).add(make_record(test=0.8, environment={"cpu": "Another"}))
    assert kinds(tmp_path)["repeated"].words.endswith("recorded 2 times; the scores agree")
    Store(tmp_path).add(make_record(test=0.7))
    assert "the results differ: test 0." in kinds(tmp_path)["repeated"].words
    Store(tmp_path).add(make_record(status="diverged"))
    assert "the results differ: status " in kinds(tmp_path)["repeated"].words


def test_foreign_protocols_are_named_and_their_ids_are_held_to_their_own(tmp_path):
    filled(tmp_path)
    record = make_record(protocol="0.9")
    Store(tmp_path).add(replace(record, run_id=record.spec.run_id("1", "0.9")))
    found = kinds(tmp_path)
    assert set(found) == {"foreign protocol"}
    assert f"the protocol is 0.9, but this version has {' and '.join(PROTOCOLS)}" in found["foreign protocol"].words
    Store(tmp_path).add(replace(record, protocol="1.0", run_id=record.spec.run_id("1", "1.0")))
    assert kinds(tmp_path)["old protocol"].harmless


def test_measurements_are_said_and_are_no_fault(tmp_path):
    filled(tmp_path)
    (tmp_path / "growth.json").write_text('{"experiment": "growth", "points": []}', encoding="utf-8")
    assert set(kinds(tmp_path)) == {"no record"}
    assert verify(tmp_path).clean and verify(tmp_path).records == 3


def test_leftovers_of_killed_writers_are_named_and_a_checkpoint_is_none(tmp_path):
    path = filled(tmp_path)[0]
    of_no_use = ".0123456789abcdef.checkpoint.20260101T000000000000Z.unused"
    leftovers = [f".{path.name}.half", ".try-abc", ".0123456789abcdef.claim", of_no_use]
    for name in (*leftovers, ".0123456789abcdef.checkpoint"):
        (tmp_path / name).touch()
    found = {finding.files[0]: finding.kind for finding in verify(tmp_path).findings}
    assert found == {**dict.fromkeys(leftovers, "leftover"), ".0123456789abcdef.checkpoint": "checkpoint"}
    assert verify(tmp_path).clean, "what nothing reads is named and is no fault"


def test_the_next_command_clears_what_interrupted_ones_left(tmp_path):
    path = filled(tmp_path)[0]
    recorded = f".{make_record(seed=1).run_id}.checkpoint"
    names = [recorded, ".0123456789abcdef.checkpoint", f".{path.name}.half", ".try-abc", ".try-now", ".claimed.checkpoint.1.unused"]
    for name in names:
        (tmp_path / name).write_text("", encoding="utf-8")
    for name in (recorded, *names[2:4]):
        os.utime(tmp_path / name, (0, 0))
    found = {finding.files[0]: finding for finding in verify(tmp_path).findings}
    assert "the next attn-zoo run removes it" in found[recorded].words and found[names[1]].kind == "checkpoint"
    with Store(tmp_path).claim(make_record(seed=1).run_id):
        Store(tmp_path).clear_leftovers()
        assert (tmp_path / recorded).exists(), "a process is at the run"
    Store(tmp_path).clear_leftovers()
    assert {item.name for item in tmp_path.glob(".*")} == {names[1], names[4], names[5]}
    assert verify(tmp_path).records == 3


def test_a_checkpoint_is_kept_for_a_study_that_does_a_recorded_run_again(tmp_path):
    filled(tmp_path)
    checkpoint = tmp_path / f".{make_record(seed=1).run_id}.checkpoint"
    checkpoint.touch()
    later = max(path.stat().st_mtime for path in tmp_path.glob("*.json")) + 1
    os.utime(checkpoint, (later, later))
    assert kinds(tmp_path)["checkpoint"].files == (checkpoint.name,)
    Store(tmp_path).clear_leftovers()
    assert checkpoint.exists()
    checkpoint.unlink()
    assert not Store(tmp_path).is_over(checkpoint), "its run may end between the listing of a folder and this call"


def test_a_checkpoint_that_is_still_needed_outlives_packing_and_unpacking(tmp_path):
    _, other, _ = filled(tmp_path)
    checkpoint = tmp_path / f".{make_record(seed=1).run_id}.checkpoint"
    checkpoint.touch()
    later = max(path.stat().st_mtime for path in tmp_path.glob("*.json")) + 10
    os.utime(checkpoint, (later, later))
    os.utime(other, (later + 10, later + 10))
    for move in (Store(tmp_path).pack, Store(tmp_path).unpack):
        move()
        Store(tmp_path).clear_leftovers()
        assert checkpoint.exists(), "only another run has been recorded since"
    os.utime(checkpoint, (later - 60, later - 60))
    Store(tmp_path).pack()
    Store(tmp_path).clear_leftovers()
    assert not checkpoint.exists()


def _claim(folder: Path, claimed: Any, go_on: Any) -> None:
    with Store(folder).claim("0123456789abcdef") as ours:
        claimed.put(ours)
        go_on.get()


def test_a_claim_is_one_process_s_until_it_ends_however_that_be(tmp_path):
    context = multiprocessing.get_context("fork")
    claimed, go_on = context.Queue(), context.Queue()
    holder = context.Process(target=_claim, args=(tmp_path, claimed, go_on))
    holder.start()
    assert claimed.get(timeout=HANG) is True
    with Store(tmp_path).claim("0123456789abcdef") as ours:
        assert not ours
    with Store(tmp_path).claim("another") as ours:
        assert ours
    assert kinds(tmp_path)["running"].files == (".0123456789abcdef.claim",)
    assert verify(tmp_path).clean
    assert holder.pid
    os.kill(holder.pid, 9)
    holder.join()
    assert kinds(tmp_path)["leftover"].files == (".0123456789abcdef.claim",)
    with Store(tmp_path).claim("0123456789abcdef") as ours:
        assert ours, "what is left of the dead one claims nothing"
    assert list(tmp_path.iterdir()) == []


def test_the_command_reports_and_changes_nothing(tmp_path, capsys):
    first, second, _ = filled(tmp_path)
    assert main(["records", "verify", "--records", str(tmp_path)]) == 0
    assert "3 records of 3 runs; nothing is wrong" in " ".join(capsys.readouterr().out.split())
    second.write_text("{", encoding="utf-8")
    shutil.copy(first, tmp_path / f"copy-{first.name}")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["records", "verify", "--records", str(tmp_path)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "3 records of 2 runs; 2 findings" in said
    assert "damaged: the text is not readable as JSON: Input data was truncated; " in said
    assert f" copy-{first.name}" in said
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert main(["records", "verify", "--records", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["records", "verify", "--records", str(first)]) == 2
    assert "is a file. Name the folder" in capsys.readouterr().err


@pytest.mark.parametrize("nested", [False, True])
def test_folders_are_merged_by_copying_in_any_order(tmp_path, nested):
    """Three folders hold shared runs with different scores, one run of their own each, and one run that only one completed."""
    parts = [tmp_path / name for name in "abc"]
    for at, part in enumerate(parts):
        for seed in (1, 2, at + 3):
            Store(part).add(make_record(seed=seed, test=0.8 + seed / 100 + at / 1000))
        Store(part).add(make_record("performer", status="done" if at == 1 else "failed"))
    told = set()
    for order in itertools.permutations(parts):
        whole = tmp_path / "-".join(part.name for part in order)
        for at, part in enumerate(order):
            shutil.copytree(part, whole / str(at) if nested else whole, dirs_exist_ok=True)
        assert len(Store(whole).load()[0]) == 12
        told.add("\n".join(leaderboard(whole, format=kind) for kind in ("terminal", "latex")))
    assert len(told) == 1
