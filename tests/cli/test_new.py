"""What ``attn-zoo new`` writes, and what it refuses. The pages of ``docs`` show that it installs, passes the kit and runs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from attn_zoo.cli import main
from attn_zoo.scaffold import package

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "attn_zoo" / "scaffold" / "templates"
ATTENTION, TASK = ["my_attention"], ["my_task", "--task"]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A folder with a package of either kind."""
    folder = tmp_path_factory.mktemp("written")
    for words in (ATTENTION, TASK):
        assert main(["new", *words, "--output", str(folder / words[0])]) == 0
    return folder


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("words", "module"), [(ATTENTION, "attention"), (TASK, "task")])
def test_it_writes_a_package_here_and_says_what_to_do_next(words, module, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", *words]) == 0
    name = words[0]
    expected = {".gitignore", "README.md", "pyproject.toml"}
    expected |= {f"src/{name}/__init__.py", f"src/{name}/{module}.py", f"tests/test_{name}.py"}
    assert files(tmp_path / name) == expected
    printed = capsys.readouterr().out.split("\n\nnext:\n")
    assert {line.strip() for line in printed[0].splitlines()[1:]} == expected
    run = f"attn-zoo run task={name}" if module == "task" else f"attn-zoo run attention={name} task=digits"
    assert printed[1].split("\n") == [f"  pip install -e {name}", f"  attn-zoo check {name}", f"  pytest {name}", f"  {run}", ""]


@pytest.mark.parametrize("name", ["my_attention", "my_task"])
def test_its_pyproject_offers_the_entry_point_to_the_zoo_that_wrote_it(name, written):
    found = tomllib.loads((written / name / "pyproject.toml").read_text(encoding="utf-8"))
    assert found["project"]["name"] == name.replace("_", "-")
    assert found["project"]["dependencies"] == [f"attn-zoo>={version('attn-zoo')}"]
    assert found["project"]["entry-points"] == {"attn_zoo.plugins": {name: name}}


def test_nothing_is_left_of_the_templates_and_python_is_in_order(written):
    for path in written.rglob("*"):
        assert path.is_dir() or not {"{{", "}}", "{%"} & set(path.read_text(encoding="utf-8").split()), path
    for words in (["check"], ["format", "--check"]):
        command = [sys.executable, "-P", "-m", "ruff", *words, "--isolated", "--no-cache", "."]
        done = subprocess.run(command, cwd=written, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_templates_are_all_used_and_shipped():
    there = {path.name for path in TEMPLATES.iterdir()}
    assert {template for files in (package._COMMON, *package._OWN.values()) for template in files.values()} == there
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    patterns = shipped["package-data"]["attn_zoo.scaffold"]
    assert {path.name for pattern in patterns for path in TEMPLATES.parent.glob(pattern)} == there


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("My-Attention", "because it names a Python package; got 'My-Attention'. Write my_attention"),
        ("2fast", "must begin with a small letter"),
        ("_hidden", "Write hidden"),
        ("a__b", "Write a_b"),
        ("naïve", "got 'naïve'. Write naive"),
        ("größe", "Write grosse"),
        ("", "got ''"),
        ("lambda", "must not be a keyword of Python"),
        ("null", "and not one of true, false, null, nan, inf, infinity; got 'null'"),
        ("infinity", "and not one of true, false, null, nan, inf, infinity; got 'infinity'"),
        ("a" * 65, "must be an identifier of at most 64 ASCII letters"),
        (
            "linformer",
            "the name 'linformer' is already in use: it is the attention that attn_zoo.attention.low_rank.linformer:Linformer",
        ),
        ("digits", "the name 'digits' is already in use: it is the task that attn_zoo.tasks.digits:Digits"),
        ("numpy", "the name 'numpy' is already in use by an installed module"),
        ("random", "the name 'random' is already in use by an installed module"),
    ],
)
@pytest.mark.parametrize("task", [False, True])
def test_names_that_will_not_do_are_refused_before_anything_is_written(name, message, task, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", name, *(["--task"] if task else [])]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_class_may_be_named(tmp_path):
    for kind, words in (("task", ["--task"]), ("attention", [])):
        assert main(["new", f"my_{kind}", *words, "--class", "Palindromes2", "--output", str(tmp_path / kind)]) == 0
        package_ = tmp_path / kind / "src" / f"my_{kind}"
        assert "\nclass Palindromes2(" in (package_ / f"{kind}.py").read_text(encoding="utf-8")
        assert f"from my_{kind}.{kind} import Palindromes2" in (package_ / "__init__.py").read_text(encoding="utf-8")
        test = (tmp_path / kind / "tests" / f"test_my_{kind}.py").read_text(encoding="utf-8")
        assert "Palindromes2" not in test, "a test that names no class needs no change with it"


def test_nothing_that_is_there_is_overwritten(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_attention").mkdir()
    (tmp_path / "my_attention" / "notes.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for words in ([], ["--output", "file"]):
        assert main(["new", "my_attention", *words]) == 2
        assert "must be a new or empty folder" in capsys.readouterr().err
    assert files(tmp_path) == {"my_attention/notes.txt", "file"}
