"""``attn-zoo compare``: which rows are trained, beside which records, and how the verdict is told."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_helpers import leave_few_checks

from attn_zoo import reference
from attn_zoo.cli import compare, main
from attn_zoo.cli.compare import named_rows, place, with_reference
from attn_zoo.cli.run import plan
from attn_zoo.conformance import Report
from attn_zoo.leaderboard import tables
from attn_zoo.records import Store
from attn_zoo.rows import RowName

UNIFORM = str(Path(compare.__file__).parents[1] / "attention" / "controls" / "uniform.py")


@pytest.fixture(scope="module")
def shipped():
    return Store(reference.packed_file("quickstart")).load()[0]


@pytest.fixture
def trained(shipped, tmp_path, monkeypatch):
    """Runs of the command, recorded with Linformer's scores instead of being trained."""
    planned_runs = []

    def carry_out(planned, command):
        planned_runs.append((planned, command))
        like = {(r.spec.task, r.spec.seed): r for r in shipped if r.spec.attention == "linformer"}
        for job in planned.jobs:
            record = like[job.spec.task, job.spec.seed]
            card = {**record.attention_card, "name": job.spec.attention}
            Store(planned.settings.records).add(replace(record, spec=job.spec, run_id=job.run_id, attention_card=card))
        return 0

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "carry_out", carry_out)
    return planned_runs


def test_it_trains_as_the_quickstart_did_and_prints_verdicts_beside_its_rows(shipped, trained, monkeypatch, capsys):
    monkeypatch.setattr(compare, "prove", lambda entry, defaults: Report(entry.name, ()))
    assert main(["compare", "linear"]) == 1, "no check ran"
    printed = capsys.readouterr().out
    ((planned, command),) = trained
    assert command == ["attn-zoo", "compare", "linear"]
    known = {(r.spec.task, r.spec.seed): r.spec for r in shipped if r.spec.attention == "softmax"}
    assert len(planned.jobs) == len(known) == 6
    for spec in planned.specs:
        like = known[spec.task, spec.seed]
        assert replace(spec, attention=like.attention, options=like.options) == like
    assert planned.settings.records.startswith("compare/linear-")
    assert "linear on Digits (patches): 93.7 ± 2.9 %, no better than the best control (uniform): +0.6 ± 3.0 points" in " ".join(
        printed.split()
    )
    assert "reformer" in printed and "none (c)" in printed
    assert "A check failed (see above)" in printed


@pytest.mark.process
def test_an_attention_of_a_file_is_proved_trained_and_placed(home, monkeypatch, capsys):
    small = ["workers=1", "budget.steps=3", "budget.evaluate_every=3", "model.dim=16", "model.heads=2"]
    monkeypatch.setattr(compare, "plan", lambda words: plan([*words, *small]))
    leave_few_checks(monkeypatch)
    assert main(["new", "mine"]) == 0
    assert main(["compare", "mine/src/mine/attention.py"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^mine: \d+ passed", printed, re.MULTILINE)
    assert len(Store(next(Path("compare").glob("mine-*"))).load()[0]) == 6
    assert re.search(r"^mine on Digits \(patches\): [\d.]+ ± [\d.]+ %, ", printed, re.MULTILINE)


@pytest.mark.parametrize(("where", "changed"), [("package", "helper.py"), ("folder", "helper.py"), ("attn_zoo", "attention.py")])
def test_changed_code_of_a_mechanism_or_beside_it_has_a_folder_of_its_own(where, changed, tmp_path, monkeypatch):
    root = tmp_path / "mine"
    root.mkdir()
    if where == "package":
        (root / "__init__.py").write_text("", encoding="utf-8")
    (root / "attention.py").write_text("class Mine: ...\n", encoding="utf-8")
    monkeypatch.setattr(compare, "card", lambda name: SimpleNamespace(build=object, origin=f"{where}.attention:Mine"))
    monkeypatch.setattr("attn_zoo.cli.compare.inspect.getfile", lambda kind: str(root / "attention.py"))
    monkeypatch.setattr(compare, "exported_plugins", lambda: [root] if where == "folder" else [])
    folders = []
    for text in ("first", "second", "first"):
        (root / changed).write_text(text, encoding="utf-8")
        folders.append(compare._folder([RowName("linear")]))
    assert folders[0] == folders[2] != folders[1]


def test_a_failed_check_and_a_refused_task_are_said_before_the_first_run(trained, monkeypatch, capsys):
    def carry_out(planned, command):
        print("TRAINING")
        return 0

    monkeypatch.setattr(compare, "carry_out", carry_out)
    monkeypatch.setattr(compare, "prove", lambda entry, defaults: Report(entry.name, ()))
    monkeypatch.setattr(compare, "refusal", lambda job: f"{job.spec.attention} takes even lengths")
    assert main(["compare", "linear"]) == 1
    before, _, after = capsys.readouterr().out.partition("TRAINING")
    assert "linear: no check ran" in before and before.count("linear does not support") == 2 and after


def test_rows_that_are_done_anew_take_the_place_of_the_reference(shipped):
    anew = [r for r in shipped if r.spec.attention == "linformer"]
    assert sorted(r.run_id for r in with_reference(anew)) == sorted(r.run_id for r in shipped)


def test_a_control_and_a_failed_run_have_no_verdict(shipped):
    failed = [
        replace(r, status="diverged", reason="loss is nan", scores={}) if r.spec.attention == "softmax" else r for r in shipped
    ]
    table = tables(failed)[0]
    rows = {row.attention: row for row in table.rows}
    assert place(rows["none"], table).endswith(" %")
    assert "loss is nan" in place(rows["softmax"], table)


def test_targets_are_rows_or_what_paths_register():
    assert [str(row) for row in named_rows(["linformer[projected_length=4|8]"])] == [
        "linformer[projected_length=4]",
        "linformer[projected_length=8]",
    ]
    assert [str(row) for row in named_rows([UNIFORM])] == ["uniform"]
    assert [str(row) for row in named_rows([UNIFORM, "linear"])] == ["linear"]
    with pytest.raises(FileNotFoundError, match=r"file nosuch.py does not exist"):
        named_rows(["nosuch.py"])
