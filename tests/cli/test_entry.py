"""First steps of a user: cards in the shell, a plugin in a file, and where records lie."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_plugins import plain
from patience import HANG

from attn_zoo import registry
from attn_zoo.cli import main
from attn_zoo.plugin_files import VARIABLE

ROOT = Path(__file__).parents[2]
TINY = ["task=digits", "level=smoke", "budget.steps=2", "budget.evaluate_every=2", "report=false", "device=cpu"]
DOUBLED = f'"""yᵢ = 2 vᵢ."""\n{plain("entry_mine", "2 * value")}'


@pytest.fixture
def plugin(home) -> Path:
    """A file with an attention."""
    path = home / "entry_plugin.py"
    path.write_text(DOUBLED, encoding="utf-8")
    return path


def fails(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Errors of a command that ends with status 2 and prints nothing else."""
    try:
        status = main(words)
    except SystemExit as stop:
        status = int(stop.code or 0)
    printed = capsys.readouterr()
    assert status == 2 and not printed.out and "Traceback" not in printed.err
    return printed.err


@pytest.mark.parametrize("name", ["records=", "--records=", "--records "])
def test_a_setting_is_written_one_way_or_the_other_in_every_command(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    words = f"{name}mine".split(" ")
    assert main(["leaderboard", *words]) == 0
    assert "no records in 'mine' yet" in capsys.readouterr().out
    few = ["attention=none", "task=digits", "level=smoke", "budget.steps=1", "device=cpu"]
    assert main(["run", *few, *words]) == 0
    assert "records go to 'mine'" in capsys.readouterr().out
    assert main(["show", "none", *words]) == 0


def test_a_card_in_the_shell_has_its_equation_claims_options_and_paper(capsys):
    assert main(["list", "longformer", "digits"]) == 0
    printed = capsys.readouterr().out
    for words in (
        "yᵢ = Σⱼ softmaxⱼ(qᵢ·kⱼ / √d) vⱼ",
        "2 min(256, n/8) + 1",
        "arXiv:2004.05150",
        "eager, tiled, flex",
        "CC BY 4.0",
        "UCI digits",
    ):
        assert words in printed
    assert re.search(r"^causal +yes$", printed, re.MULTILINE) and re.search(r"^window .*257", printed, re.MULTILINE)
    assert max(map(len, printed.splitlines())) <= 100


def test_controls_are_marked_in_the_list(capsys):
    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    marked = set(re.findall(r"^(\w+) \(c\) ", printed, re.MULTILINE))
    assert marked == {name for name in registry.attentions() if registry.card(name).control} > {"none", "uniform"}
    assert "(c) marks a control" in printed


def test_help_of_run_shows_defaults_of_the_task_that_is_named(capsys):
    assert main(["run", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "null" not in printed and "budget.steps=600" in printed and "records=runs" in printed
    assert max(map(len, printed.splitlines())) <= 100
    assert main(["run", "task=listops", "attention=linformer", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "task.length=" in printed and "attention.projected_length=" in printed
    assert "attention.init=random" in printed and "attention.equalised=false" in printed, "also what a spec leaves out"
    assert main(["run", "task=needle", "attention=linear+softmax", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "task.causal=true" in printed and "attention.softmax.sinks=false" in printed
    assert main(["run", "-m", "task=listops", "seed=1,2", "--help"]) == 0, "a sweep has a help, too"


STARTING = """
import sys


class Failing:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise {error}


sys.meta_path.insert(0, Failing())
from attn_zoo.cli import main

sys.argv[1:] = {words!r}
sys.exit(main())
"""
"""Program that starts a command as a shell does, during which the import of a module fails."""
FAILURES = {
    "interrupt of the command": ("attn_zoo.cli.parsing", "KeyboardInterrupt", 130, "interrupted"),
    "interrupt of a library": ("argparse", "KeyboardInterrupt", 130, "interrupted"),
    "interrupt of torch": ("torch", "KeyboardInterrupt", 130, "interrupted"),
    "interrupt that a library wraps": ("torch", "ImportError('no numpy') from KeyboardInterrupt()", 130, "interrupted"),
    "no room for torch": ("torch", "ImportError('libtorch_cpu.so: failed to map segment from shared object')", 1, "ulimit"),
    "no room for a file": ("torch", "OSError(12, 'Cannot allocate memory')", 2, "Cannot allocate memory"),
    "no memory": ("attn_zoo.registry", "MemoryError", 1, "not enough memory (MemoryError)"),
}


@pytest.mark.parametrize(("module", "error", "status", "words"), FAILURES.values(), ids=FAILURES)
def test_a_start_that_fails_ends_with_one_line(module, error, status, words):
    code = STARTING.format(module=module, error=error, words=["list"])
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == status, done.stderr
    assert words in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no limit of addresses")
def test_a_gigabyte_of_addresses_is_refused_in_one_line():
    limited = ["sh", "-c", 'ulimit -v 1000000; exec "$@"', "sh", sys.executable, "-P", "-m", "attn_zoo.cli", "list"]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("attn-zoo: not enough memory (") and len(done.stderr.splitlines()) == 1


def test_nothing_is_imported_before_an_interrupt_is_caught():
    code = "import sys; before = set(sys.modules); import attn_zoo.cli; print(*sorted(set(sys.modules) - before))"
    command = [sys.executable, "-S", "-c", code]  # without the packages of this environment
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=HANG)
    assert set(done.stdout.split()) - {"__future__"} == {"attn_zoo", "attn_zoo.cli", "attn_zoo.cli.main"}


def test_a_file_is_a_plugin_for_every_command(plugin, capsys):
    assert main(["list", "entry_mine", "--plugin", "./entry_plugin.py"]) == 0
    assert "yᵢ = 2 vᵢ." in capsys.readouterr().out
    assert main(["run", "plugin=./entry_plugin.py", "attention=entry_mine", *TINY]) == 0
    (file,) = Path("runs").glob("entry_mine*.json")
    environment = json.loads(file.read_text(encoding="utf-8"))["environment"]
    assert list(environment["plugins"]) == ["entry_plugin.py"] and len(environment["plugins"]["entry_plugin.py"]) == 64
    assert environment["command"].endswith("plugin=.../entry_plugin.py")
    assert main(["leaderboard", "--plugin", "entry_plugin.py"]) == 0
    assert "entry_mine" in capsys.readouterr().out


def test_a_run_of_a_plugin_that_has_changed_since_says_so(plugin, capsys):
    words = ["run", "plugin=./entry_plugin.py", "attention=entry_mine", *TINY]
    assert main(words) == 0
    capsys.readouterr()
    plugin.write_text(DOUBLED.replace("2 * value", "3 * value"), encoding="utf-8")
    assert main(words) == 0
    assert "recorded already by an earlier version of entry_plugin.py; give another records=FOLDER" in capsys.readouterr().out


def test_a_recorded_run_with_other_data_of_ones_own_says_so(tmp_path, monkeypatch, capsys):
    """The id of a run does not name the folder of the data, because the same data can be anywhere."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("one", "copy", "two")):
        Path(name).mkdir()
        letters = random.Random(number // 2)
        for at in range(6):
            Path(name, f"{at}.txt").write_text(" ".join("".join(letters.choices("abcdefgh", k=5)) for _ in range(300)))
    said = []
    for name in ("one", "copy", "two"):
        words = ["task=causal_language", "level=smoke", "task.files=folder", f"task.path={name}", "task.length=16"]
        assert main(["run", "attention=none", *words, "budget.steps=1", "report=false"]) == 0
        said.append(capsys.readouterr().out)
    assert "recorded already" not in said[0].partition("\n")[2]
    assert "recorded already\n" in said[1]
    assert "recorded already with other data than task.path names now; give another records=FOLDER to train on these" in said[2]


def test_a_plugin_that_fails_is_named_with_its_file_and_line(plugin, capsys):
    plugin.write_text("x = 1\nraise RuntimeError('it was late')\n", encoding="utf-8")
    said = fails(["run", "plugin=entry_plugin.py", "attention=entry_mine"], capsys)
    assert "RuntimeError: it was late (entry_plugin.py:2)" in said
    plugin.write_text("x = 1\n", encoding="utf-8")
    assert "registers none. Decorate a class" in fails(["list", "--plugin", "entry_plugin.py"], capsys)


@pytest.mark.exhaustive
def test_workers_load_the_plugin(plugin, capsys):
    words = ["plugin=./entry_plugin.py", "attention=entry_mine", "seed=1,2", "launch=joblib", "workers=2", "threads=1"]
    assert main(["run", "-m", *words, *TINY]) == 0
    assert len(list(Path("runs").glob("entry_mine*.json"))) == 2
    measured = ["measure", "plugin=./entry_plugin.py", "attention=entry_mine", "lengths=[16]", "dim=16", "heads=2", "rounds=1"]
    assert main(measured) == 0
    assert "entry_mine" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_a_run_of_a_plugin_is_done_again_with_it_and_not_without(plugin, capsys, monkeypatch):
    assert main(["run", "plugin=./entry_plugin.py", "attention=entry_mine", *TINY]) == 0
    assert main(["records", "rerun", "--into", "again", "--plugin", "./entry_plugin.py"]) == 0
    assert "1 of 1 runs have equal scores" in capsys.readouterr().out and list(Path("again").glob("entry_mine*.json"))
    monkeypatch.delenv(VARIABLE)
    assert main(["records", "rerun", "--into", "alone"]) == 1
    assert "NOT DONE: attn-zoo: no attention is called 'entry_mine'" in " ".join(capsys.readouterr().out.split())
