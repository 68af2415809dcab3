"""``attn-zoo submit``, end to end: somebody trains a mechanism of their own, submits it, and it is checked and run again."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from hostile_plugins import plain
from run_helpers import leave_few_checks

from attn_zoo import plugin_files, reference, registry
from attn_zoo.cli import main
from attn_zoo.cli import submit as submitting
from attn_zoo.conformance import Case, Report, Result
from attn_zoo.contract import AttentionCard
from attn_zoo.leaderboard.community import Submission, write_submission
from attn_zoo.records import Store
from attn_zoo.records.files import NAME, pack

ROOT = Path(__file__).parents[2]
DATA = ["task=listops", "task.length=24", "task.train=100", "task.valid=50", "task.test=50"]
TINY = [*DATA, "budget.steps=2", "budget.evaluate_every=1", "model.dim=16", "model.heads=2", "threads=1", "report=false"]
PLUGIN = f'"""yᵢ = vᵢ."""\n{plain("outside")}'
PASSED = Result(Case("outside", "a_check", "", lambda: None), "passed", "", 0.0)
WHO = ["--name", "Jane Doe", "--paper", "Doe 2026, arXiv:2601.00001"]


def run(attention: str, records: str, *words: str) -> None:
    assert main(["run", "-m", f"attention={attention}", *TINY, "seed=1,2", f"records={records}", *words]) == 0


@pytest.fixture(scope="module")
def shipped(tmp_path_factory) -> Path:
    """Packed file with tiny runs that stand for our results."""
    folder = tmp_path_factory.mktemp("shipped")
    run("softmax,uniform", str(folder / "runs"))
    pack(Store(folder / "runs").load()[0], folder / "tiny.jsonl.xz")
    return folder / "tiny.jsonl.xz"


@pytest.fixture
def elsewhere(shipped, home, monkeypatch):
    """Folder of somebody."""
    monkeypatch.setenv(plugin_files.VARIABLE, "")
    monkeypatch.setattr(plugin_files, "_INSTALLED", {})
    monkeypatch.setattr(reference, "shipped", lambda: ["tiny"])
    monkeypatch.setattr(reference, "packed_file", lambda name: shipped)
    leave_few_checks(monkeypatch)
    return home


@pytest.fixture
def outside(elsewhere) -> None:
    """Folder of somebody with runs of their own plugin."""
    (elsewhere / "outside.py").write_text(PLUGIN, encoding="utf-8")
    run("outside", "runs", "plugin=outside.py")


def forget() -> None:
    """Forget the plugin, as another process would."""
    registry._ATTENTIONS.pop("outside")
    registry._LOADED.clear()
    plugin_files.unexport_plugin(Path("outside.py").resolve())
    sys.modules.pop("outside")


def submit(*words: str) -> int:
    return main(["submit", "runs", *words])


def test_a_submission_from_outside_is_written_checked_and_run_again(outside, capsys, monkeypatch):
    assert submit(*WHO, "--plugin", "outside.py") == 0
    printed = capsys.readouterr().out
    score = r"^outside on ListOps: [\d.]+ (± [\d.]+|\([\d.]+ to [\d.]+\)) %"
    assert re.search(score, printed, re.MULTILINE) and "Every rule is kept: 2 records" in printed
    (folder,) = Path("results/community").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "code", NAME, "submission.toml"]
    assert (folder / "code" / "outside.py").read_text(encoding="utf-8") == PLUGIN
    assert Store(folder / NAME).load() == Store("runs").load()
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text.startswith("# outside by Jane Doe\n") and "arXiv:2601.00001" in text and "*self-run*" in text
    assert submit(*WHO, "--plugin", "outside.py") == 2
    assert "--output must name a new folder, because nothing is overwritten" in capsys.readouterr().err
    forget()
    proved = []

    def prove(card: AttentionCard) -> Report:
        proved.append(card.origin)
        return Report(card.name, (PASSED,))

    monkeypatch.setattr(submitting, "prove", prove)
    assert main(["submit", str(folder)]) == 0 and proved == ["outside:Mine"]
    command = re.search(r"^attn-zoo (records rerun .*)$", text, re.MULTILINE)
    assert command and main(command[1].split()) == 0
    assert "test score within 0.02 of " in capsys.readouterr().out and len(Store("again").load()[0]) == 1


def test_a_plugin_that_fails_the_conformance_tests_is_refused(outside, capsys, monkeypatch):
    kind = registry.card("outside").build
    monkeypatch.setattr(kind, "definition", lambda self, query, key, value, key_valid: 2 * value)
    assert submit(*WHO, "--plugin", "outside.py") == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "conformance: outside must pass attn-zoo check --strict, but a check fails" in printed
    assert not Path("results").exists()


def test_code_that_is_missing_or_has_changed_is_refused(outside, capsys):
    assert submit(*WHO) == 1
    assert "plugin: the code of outside must be submitted" in capsys.readouterr().out
    Path("outside.py").write_text(f"{PLUGIN}# changed\n", encoding="utf-8")
    assert submit(*WHO, "--plugin", "outside.py") == 1
    words = "must be the file or folder that the records were made with, but it is another one or has changed since"
    assert f"plugin: outside.py {words}" in " ".join(capsys.readouterr().out.split())
    forget()
    Path("outside.py").rename("another.py")
    assert submit(*WHO, "--plugin", "another.py") == 1, "a new name does not hide the change"
    assert f"plugin: another.py {words}" in " ".join(capsys.readouterr().out.split())


def test_the_code_of_an_installed_plugin_must_be_that_of_the_runs(elsewhere, capsys):
    source = elsewhere / "mine" / "src"
    facts = source / "outside-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[attn_zoo.plugins]\noutside = outside\n")
    (source / "outside").mkdir()
    code = source / "outside" / "__init__.py"
    code.write_text(PLUGIN, encoding="utf-8")
    sys.path.insert(0, str(source))
    run("outside", "runs")
    assert submit(*WHO, "--plugin", "mine", "--output", "whole") == 0
    code.write_text(f"{PLUGIN}# changed\n", encoding="utf-8")
    capsys.readouterr()
    run("outside", "runs")
    said = capsys.readouterr().out
    assert said.count("recorded already by an earlier version of outside (installed); give another records=FOLDER") == 2
    assert submit(*WHO, "--plugin", "mine") == 1
    assert "plugin: mine must be the file or folder that the records were made with" in " ".join(capsys.readouterr().out.split())


def test_all_broken_rules_are_told_with_what_to_do(outside, capsys):
    words = [word for word in TINY if not word.startswith("model.dim")]
    assert main(["run", "attention=outside", *words, "model.dim=8", "records=small"]) == 0
    capsys.readouterr()
    assert main(["submit", "small", *WHO]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    for said in (
        "model.dim must be 16; got 8",
        "seeds: outside on listops",
        "missing: 2. ",
        "plugin: the code of outside must be submitted; give its file or folder with --plugin PATH. It must also pass",
        "Not accepted: 3 rules are broken. What to do: mend what each line names. attn-zoo compare ./mine.py",
    ):
        assert said in printed


def test_a_folder_with_other_files_is_refused(outside, capsys):
    about = Submission("Jane Doe", "none", date(2026, 11, 28))
    write_submission(Path("mine"), about, Store("runs").load()[0], [], [])
    Path("mine/more.json").write_text("{}", encoding="utf-8")
    assert main(["submit", "mine"]) == 1
    assert "files: mine must hold what attn-zoo submit wrote and nothing else; remove more.json" in capsys.readouterr().out


CHANGES = {
    "one": (["results/community/a/submission.toml", "results/community/a/code/m.py"], 0),
    "none": (["results/community/again/a.jsonl.xz", "results/community/README.md"], 0),
    "two": (["results/community/a/submission.toml", "results/community/b/submission.toml"], 1),
    "others": (["results/community/a/submission.toml", "attn_zoo/registry.py"], 1),
    "its own repetition": (["results/community/a/submission.toml", "results/community/again/a.jsonl.xz"], 1),
}


@pytest.mark.parametrize(("paths", "status"), CHANGES.values(), ids=CHANGES)
def test_ci_checks_one_folder_and_runs_one_of_its_runs_again(paths, status, tmp_path):
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("commit", "--allow-empty", "-m", "base")
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x", encoding="utf-8")
    git("add", ".")
    git("commit", "-m", "submission")
    zoo = tmp_path / "zoo"
    zoo.write_text('#!/bin/sh\necho zoo "$@"\n', encoding="utf-8")
    zoo.chmod(0o755)
    done = subprocess.run([ROOT / ".ci/submission", "HEAD~1", zoo], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("zoo ")]
    if len(paths) == 2 and "code" in paths[1]:
        assert said[0] == "zoo submit results/community/a"
        assert re.fullmatch(
            r"zoo records rerun --records results/community/a/records.jsonl.xz .*--plugin results/\S+/m.py", said[1]
        )
    else:
        assert not said
