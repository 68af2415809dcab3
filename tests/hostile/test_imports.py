"""Plugins that interrupt, end or keep alive the process that imports them are named, and break no command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_plugins import write
from patience import HANG
from test_rows_apart import SMALL

from attn_zoo.plugin_imports import imported

START = """
import sys
from attn_zoo.cli import main, supervised
supervised.PATIENCE = 1
sys.exit(main())
"""
"""The command as a shell starts it, but with less patience at its end."""
TEXT = """
import os
class Leaving(Exception):
    def __str__(self):
        os._exit(0)
raise Leaving
"""
"""A plugin whose error ends the process when its message is read."""


def zoo(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", START, *words]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG, check=False)


def install(folder: Path, name: str, text: str) -> None:
    """Lay down a package with an entry point, as an installer does."""
    (folder / f"{name}.py").write_text(text)
    facts = folder / f"{name}-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(f"[attn_zoo.plugins]\n{name} = {name}\n")


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_that_no_signal_caused_is_an_error_of_the_plugin():
    with pytest.raises(RuntimeError, match="it raised KeyboardInterrupt"):
        imported("mine", "mine", interrupt)
    with pytest.raises(KeyboardInterrupt):
        imported("mine", "mine", lambda: os.kill(os.getpid(), signal.SIGINT))


def test_installed_plugins_that_fail_in_any_manner_are_left_out(tmp_path):
    ended = "the process that imported it ended with status 0"
    plugins = {
        "interrupts": ("raise KeyboardInterrupt", "it raised KeyboardInterrupt"),
        "leaves": ("import os; os._exit(0)", ended),
        "leaves_when_read": (TEXT, ended),
    }
    for name, (text, _) in plugins.items():
        install(tmp_path, name, text)
    done = zoo("list", "performer", folder=tmp_path)
    assert done.returncode == 0 and "Performer" in done.stdout
    for name, (_, said) in plugins.items():
        assert re.search(f"plugin {name} failed and is left out: .*{said}", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(9999,), name='stays').start()", "go on ('stays')"),
        pytest.param(
            "import atexit, time; atexit.register(time.sleep, 9999)",
            "a function that was registered with atexit",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_command_ends_although_a_plugin_keeps_its_process_alive(harm, said, tmp_path):
    plugin = write(tmp_path, "stays", harm, "import")
    ended = zoo("list", "stays", "--plugin", str(plugin), folder=tmp_path)
    assert ended.returncode == 0 and said in ended.stderr


def test_plugins_that_forget_pytorch_are_named_and_a_run_goes_on(tmp_path):
    for name, start in (("all", "torch"), ("parts", "torch.")):
        forget = f"[sys.modules.pop(name) for name in list(sys.modules) if name.startswith({start!r})]"
        install(tmp_path, name, f"import sys, torch\n{forget}")
    ended = zoo("run", "attention=softmax", *SMALL, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    for name in ("all", "parts"):
        said = f"plugin {name} changed settings of the whole process when it was imported; they were put back: loaded modules"
        assert said in ended.stderr


def test_a_process_that_a_plugin_forks_does_not_go_on_as_the_command(tmp_path):
    install(tmp_path, "mine", "import os; os.fork()")
    ended = zoo("list", "performer", folder=tmp_path)
    assert ended.returncode == 0 and ended.stdout.count("2009.14794") == 1  # the paper
