"""Ctrl-C on a measurement without a terminal: it ends within seconds, leaves no process behind and keeps what it found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from hostile_plugins import plain
from patience import HANG, within

SOON = 5.0
"""Seconds until the end, by a clock that a loaded machine slows down."""
WORDS = "plugin=waiting.py attention={attention} lengths=[32,{length}] dim=64 heads=2 rounds=50 output=found.json"
"""Measurement that takes minutes."""
WAITING = "import time; time.sleep(600)"
COMPILER = f"value.is_meta or __import__('subprocess').run([__import__('sys').executable, '-c', {WAITING!r}], check=True)"
"""Code of a mechanism that starts a process like a compiler's."""


def family(process: psutil.Process) -> list[psutil.Process]:
    """Processes that a process started, directly or not."""
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def words_of(process: psutil.Process) -> str:
    """Command of a process; empty where it is gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def starts(process: psutil.Process, file: Path) -> bool:
    """Return True if the process that workers are forked from is there."""
    return any("forkserver" in words_of(child) for child in family(process))


def works(process: psutil.Process, file: Path) -> bool:
    """Return True if a worker is at its cells, of which one is done."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:  # also between a check that it can be written and the first cell
        return False
    return '"cells": [\n' in text and bool(family(process))


def compiles(process: psutil.Process, file: Path) -> bool:
    """Return True if a worker has a compiler of its own running."""
    return any(WAITING in words_of(child) for child in family(process))


@pytest.fixture
def measurement(tmp_path, request) -> Iterator[subprocess.Popen[bytes]]:
    """``attn-zoo measure experiment=growth`` without a terminal, in a group of its own."""
    words = WORDS.format(**request.param).split()
    command = [sys.executable, "-P", "-m", "attn_zoo.cli", "measure", "experiment=growth", *words]
    (tmp_path / "waiting.py").write_text(plain("waiting", before=COMPILER), encoding="utf-8")
    process = subprocess.Popen(
        command, cwd=tmp_path, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def wait(condition: Callable[[], object], seconds: float) -> None:
    """Wait without rest, by the processor time of this process, which stands still while others have the core.

    Raises:
        TimeoutError: it took longer than ``seconds`` of processor time.
    """
    started = time.process_time()
    while not condition():
        if not within(took := time.process_time() - started, seconds):
            raise TimeoutError(f"not done after {took:.1f} s")


def rest(condition: Callable[[], object], seconds: float) -> None:
    """Wait and leave the core to others.

    Raises:
        TimeoutError: it took longer than ``seconds``.
    """
    started = time.monotonic()
    while not condition():
        if (took := time.monotonic() - started) > seconds:
            raise TimeoutError(f"not done after {took:.1f} s")
        time.sleep(0.05)


PLAIN = {"attention": "softmax,linformer", "length": 65536}
COMPILED = {"attention": "waiting", "length": 64}


@pytest.mark.process
@pytest.mark.parametrize("told", ["group", pytest.param("leader", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    ("measurement", "moment"),
    [pytest.param(PLAIN, starts, marks=pytest.mark.exhaustive), (PLAIN, works), (COMPILED, compiles)],
    indirect=["measurement"],
    ids=["workers start", "a step takes long", "a worker compiles"],
)
def test_an_interrupt_ends_it_soon(measurement, moment, told, tmp_path):
    leader, file = psutil.Process(measurement.pid), tmp_path / "found.json"
    rest(lambda: moment(leader, file) or measurement.poll() is not None, HANG)
    assert measurement.poll() is None, measurement.communicate()
    started = family(leader)
    (os.killpg if told == "group" else os.kill)(measurement.pid, signal.SIGINT)
    wait(lambda: measurement.poll() is not None, SOON)
    _, errors = measurement.communicate(timeout=HANG)
    assert measurement.returncode == 130, errors.decode()
    assert "Traceback" not in errors.decode() and "interrupted" in errors.decode()
    wait(lambda: not any(alive(process) for process in started), SOON)
    if moment is works:
        assert json.loads(file.read_text(encoding="utf-8"))["cells"]


def alive(process: psutil.Process) -> bool:
    """Return True if a process runs, rather than waits to be collected."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
