"""``attn-zoo recommend``: what it prints for the records of the package and for others, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache

import pytest
from make import records_of, stored

from attn_zoo import reference
from attn_zoo.cli import main
from attn_zoo.cli.recommend import memory_bytes
from attn_zoo.cli.run import plan
from attn_zoo.leaderboard import tables
from attn_zoo.leaderboard.table import Table
from attn_zoo.recommend.answer import recommend, use_cases
from attn_zoo.recommend.candidates import Requirements
from attn_zoo.recommend.needs import NEEDS
from attn_zoo.recommend.text import as_text, use_line
from attn_zoo.records import Store
from attn_zoo.registry import build_task
from attn_zoo.rows import rows_of
from attn_zoo.terminal import COLUMNS

TRANSPLANT = json.loads(reference.TRANSPLANT.read_text(encoding="utf-8"))


@cache
def shipped() -> list[Table]:
    """Return the tables of the records that come with the package."""
    return tables(Store(reference.default()).load()[0])


@pytest.mark.parametrize(
    ("limit", "first"),
    [
        ("1 KiB", "No mechanism meets these requirements, not even softmax."),
        ("1 MiB", "Softmax does not meet these requirements, and no mechanism that meets them (linear (tiled)) was shown to match"),
    ],
)
def test_softmax_that_is_refused_leaves_nothing_to_take(limit, first, capsys):
    words = ["recommend", "--length", "4096", "--decode", "--memory", limit, "--device", "cpu", "--attention", "linear"]
    assert main(words) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith(first) and f"softmax: softmax needs 8 MiB (counted, not measured); the limit is {limit}" in said


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--length 8192 --padding", "Try linear (tiled)."),
        ("--length 4096 --for generation --decode", "Use softmax (sdpa)."),
        ("--for recall", "Try linear (tiled)."),
        ("--padding --trained", "Use softmax (sdpa)."),
    ],
)
def test_an_answer_names_its_scope_first_in_few_lines(words, answer, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["recommend", *words.split(), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("This answer is for ") and lines[1] == answer and lines[2].startswith("Why: ")
    assert sum(not line.startswith("  ") or line.startswith("  attn-zoo") for line in lines) <= 9
    assert any(line.startswith("Cost: ") for line in lines)
    assert "--trained" in words or any(line.startswith("Code: ") for line in lines)
    assert max(map(len, lines)) <= COLUMNS and sum(line.startswith("Caution: ") for line in lines) <= 1
    assert main(["recommend", *words.split(), "--device", "cpu", "--all"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= COLUMNS


def printed_runs(said: str) -> list[str]:
    """Arguments of ``attn-zoo run`` in the only complete command of that kind in a recommendation; empty without one."""
    commands = re.findall(r"(?m)^  attn-zoo run (.*)$", said.replace(" \\\n", " "))
    whole = [command for command in commands if "task=NAME" not in command]
    assert len(whole) <= 1
    return shlex.split(whole[0]) if whole else []


WAYS = [(need, causal) for need in NEEDS for causal in need.directions]


@pytest.mark.parametrize("recorded", [True, False], ids=["shipped records", "no records"])
@pytest.mark.parametrize(("need", "causal"), WAYS, ids=[f"{need.name} {'causal' * causal}" for need, causal in WAYS])
def test_every_run_that_is_proposed_for_a_use_case_counts_as_its_evidence(need, causal, recorded):
    made = shipped() if recorded else []
    required = Requirements(4096, use=need.name, causal=causal, decode=need.small_state)
    proposed = 0
    for rows in ("", "linformer[projected_length=1024],performer,nystrom,reformer", "delta_rule,gated_linear"):
        words = printed_runs(as_text(recommend(required, made, rows=rows_of(rows) if rows else ())))
        for spec in plan(words).specs if words else ():
            given = build_task(spec.task, **spec.task_options).spec
            assert need.counts(spec.task, given.causal, given.length), (words, given)
            proposed += 1
    assert proposed or recorded


def test_the_counts_of_verdicts_add_up_to_the_tasks_that_decide(capsys):
    for words, tasks in ((["--all"], 6), (["--all", "--causal"], 5), (["--all", "--trained"], 4)):
        assert main(["recommend", *words, "--device", "cpu"]) == 0
        said = capsys.readouterr().out.split("\nCandidates")[1].split("\n\n")[1].splitlines()
        rows = [re.split(r" {2,}", row)[-1] for row in said[2:]]
        counted = [row for row in rows if row not in ("matches softmax", "the baseline")]
        assert len(counted) > 20
        for row in counted:
            assert sum(int(part.split()[0]) for part in row.split(", ")) == tasks, row


@pytest.mark.parametrize("use", ["documents", "vision"])
def test_use_cases_of_long_inputs_have_no_evidence_from_the_short_tasks_of_the_profile(use, capsys):
    assert main(["recommend", "--for", use, "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("No evidence yet: ") and "Caution: " not in said, "the first sentence has told all doubts"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--length", "0"], "length must be an integer >= 1"),
        (["--heads", "3"], "--width must be divisible by --heads; got --width 256 --heads 3"),
        (["--memory", "1GiB"], "--memory must go with --direction training or --decode"),
        (
            ["--causal", "--cross"],
            "--cross cannot be combined with --causal, because its keys come from another sequence. Leave one of them out",
        ),
        (
            ["--trained", "--decode"],
            "--trained cannot be combined with --decode, because attn-zoo transplant supports bidirectional",
        ),
        (["--decode", "--direction", "training"], "--decode cannot be combined with --direction training"),
        (
            ["--trained", "--task", "mqar"],
            "--trained cannot be combined with --task, because each of them chooses the deciding tasks",
        ),
        (["--for", "recal"], "did you mean 'recall'?"),
        (["--for", "generation"], "Add --decode"),
        (["--for", "vision", "--causal"], "the tasks of --for vision are bidirectional. Leave out --causal\n"),
        (["--for", "documents", "--decode"], "the tasks of --for documents are bidirectional. Leave out --decode\n"),
        (["--accept", "-1"], "--accept must be a loss of at least 0 and less than 100 points; got -1"),
        (["--task", "digits"], "there are no bidirectional records of --task digits. Run this task, or name a task with "),
        (["--records", "nowhere"], "'nowhere' does not exist"),
        (["--transplant", "t.json"], "--transplant must go with --trained"),
        (["--attention", "linfromer"], "did you mean 'linformer'?"),
        (["--attention", "softmax", "uniform"], "controls are never recommended. Leave out uniform"),
    ],
)
def test_bad_input_is_refused_in_words(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["recommend", *(["--length", "64"] if "--length" not in words else []), *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("words", "size"), [("4GiB", 4 * 2**30), ("512 mib", 2**29), ("1.5GB", 1_500_000_000), ("77", 77)])
def test_sizes_of_memory(words, size):
    assert memory_bytes(words) == size


def test_the_command_answers_every_use_case_in_a_table(tmp_path, capsys):
    file = tmp_path / "transplant.json"
    file.write_text(json.dumps(TRANSPLANT), encoding="utf-8")
    scores = {"uniform": (0.20, 0.21, 0.22), "softmax": (0.90, 0.91, 0.92), "linear": (0.90, 0.91, 0.92)}
    stored(tmp_path / "runs", records_of(scores, "mqar", spec_options={}, spec_task_options={}))
    (tmp_path / "runs" / "broken.json").write_text("{", encoding="utf-8")
    assert main(["recommend", "--records", str(tmp_path / "runs"), "--transplant", str(file), "--accept", "3"]) == 0
    out, err = capsys.readouterr()
    assert "linear" in out and "lies above -3 points" in " ".join(out.split()) and "similarity of passages" in out
    assert max(map(len, out.splitlines())) <= COLUMNS and "broken.json" in err
    assert [line[0] for line in map(use_line, use_cases(shipped(), TRANSPLANT))][:3] == [need.title for need in NEEDS[:3]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ('{"experiment": "growth"}', "is a file of growth"),
        ("[]", "another kind"),
        (json.dumps({**TRANSPLANT, "complete": False}), "are not complete"),
        (json.dumps({**TRANSPLANT, "schema": 2}), "must have schema 1"),
        (json.dumps({**TRANSPLANT, "reference": None}), "lacks some"),
        (json.dumps({**TRANSPLANT, "points": [{"attention": "linformer"}]}), "lacks some"),
    ],
    ids=lambda text: text[:20],
)
def test_a_file_that_is_no_transplant_is_refused(tmp_path, capsys, content, said):
    file = tmp_path / "found.json"
    file.write_text(content, encoding="utf-8")
    assert main(["recommend", "--transplant", str(file)]) == 2
    assert said in capsys.readouterr().err
