"""Commands in a pseudo-terminal of 100 columns and 30 lines: no line is wider, and the first one comes soon."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from rich.cells import cell_len

from attn_zoo.terminal import COLUMNS

ROOT = Path(__file__).parents[2]
SOON = 10.0
"""Seconds of processor time until the first output, at most; time on the clock would depend on what else the machine does."""
_ESCAPE = re.compile(rb"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-B0-9])")


@dataclass(frozen=True)
class Shown:
    """What a command showed on the terminal."""

    status: int
    lines: list[str]
    first: float
    """Seconds of processor time until the first output."""


def on_a_terminal(*words: str, cwd: Path) -> Shown:
    """Run ``attn-zoo`` in a pseudo-terminal and read what it shows until it ends."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "attn_zoo.cli", *words],
        cwd=cwd,
        env={**environment, "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    watched, first, shown = psutil.Process(process.pid), -1.0, b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how the end is told on Linux
            break
        if not part:
            break
        if first < 0:
            times = watched.cpu_times()
            first = times.user + times.system
        shown += part
    os.close(ours)
    lines = re.split(rb"[\r\n]+", _ESCAPE.sub(b"", shown))
    return Shown(process.wait(), [line.decode(errors="replace").rstrip() for line in lines if line.strip()], first)


def fits(shown: Shown) -> None:
    """Assert that a command showed something soon, and no line wider than the terminal."""
    assert shown.status == 0, "\n".join(shown.lines)
    assert 0 <= shown.first <= SOON
    wide = [line for line in shown.lines if cell_len(line) > COLUMNS]
    assert shown.lines and not wide, "\n".join(wide)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with the committed records of the quickstart in ``runs``."""
    shutil.copytree(ROOT / "results" / "quickstart", tmp_path / "runs")
    return tmp_path


@pytest.mark.parametrize("words", ["--help", "leaderboard --help", "list longformer"])
def test_quick_commands_fit(words, tmp_path):
    fits(on_a_terminal(*words.split(), cwd=tmp_path))


TINY = "lengths=[32,64] dim=16 heads=2 rounds=1"
DIGITS = "task=digits level=smoke budget.steps=3 budget.evaluate_every=3 model.dim=16 model.heads=2"


@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [
        "list",
        "list digits",
        "list text",
        "data list",
        "run --help",
        "check none",
        "check digits",
        "new my_attention",
        "records verify",
        "diff runs runs",
        "compare --help",
        "gpu --help",
        f"run attention=linformer {DIGITS} report=false",
        f"run -m attention=linformer,none {DIGITS} launch=joblib threads=1 report=false",
        "analyze matrix --attention nystrom --length 32 --sentences 1",
    ],
)
def test_commands_of_the_documentation_fit(words, folder):
    fits(on_a_terminal(*words.split(), cwd=folder))


@pytest.mark.process
def test_errors_fit(tmp_path):
    for words in (["run", "attention=linfomer"], ["leaderboard", "--tsk"]):
        shown = on_a_terminal(*words, cwd=tmp_path)
        assert shown.status == 2 and max(map(cell_len, shown.lines)) <= COLUMNS


@pytest.mark.process
def test_long_work_shows_a_bar_without_a_loss_that_is_no_number(tmp_path):
    words = f"run attention=softmax {DIGITS} budget.steps=200 budget.evaluate_every=50 report=false"
    shown = on_a_terminal(*words.split(), cwd=tmp_path)
    text = "\n".join(shown.lines)
    assert "/200" in text and "loss 2." in text and "nan" not in text
