"""Run of a command in a pseudo-terminal of 100 columns and 30 lines: its lines, and how long it stays silent.

Silence is the smaller of wall-clock time and the command's own processor time, so that other load on the machine does not count.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
from forked import CONTEXT, run_command
from patience import HANG, within
from rich.cells import cell_len

from attn_zoo.terminal import COLUMNS

LINES = 30
SOON = 10.0
"""Largest silence before the first output, in seconds."""
SILENCE = 30.0
"""Largest silence between outputs, in seconds."""
_ESCAPE = re.compile(rb"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-B0-9])")


@dataclass(frozen=True)
class Shown:
    """Status and output of a command on the terminal."""

    status: int
    lines: list[str]
    first: float
    """Silence before the first output, in seconds; infinite without output."""
    silence: float
    """Longest silence, in seconds."""

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)


class Forked:
    """``attn-zoo WORDS`` in a forked process on a terminal, with the methods of ``subprocess.Popen`` that are called here."""

    def __init__(self, words: Sequence[str], cwd: Path, environment: Mapping[str, str], terminal: int) -> None:
        arguments = (words, cwd, environment, Connection(os.dup(terminal)))
        self._process = CONTEXT.Process(target=_begin, args=arguments)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Exit status, or None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout: float = 60) -> int:
        """Wait for the end; return the exit status.

        Raises:
            TimeoutExpired: the process runs for longer than ``timeout`` seconds.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("attn-zoo", timeout)
        return self._process.exitcode


def _begin(words: Sequence[str], cwd: Path, environment: Mapping[str, str], terminal: Connection) -> None:
    """Run a command in a new session, with this terminal and these environment variables."""
    os.setsid()
    for descriptor in range(3):
        os.dup2(terminal.fileno(), descriptor)
    terminal.close()
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", buffering=1, closefd=False)
    os.environ.clear()
    os.environ.update(environment)
    try:
        run_command(words, cwd)
    finally:
        atexit._run_exitfuncs()  # a forked process does not run them


def on_a_terminal(words: Sequence[str], cwd: Path, forked: bool = False, **environment: str) -> Shown:
    """Run a program in a pseudo-terminal, with ``environment`` added to this process's, and read its output until it ends.

    Args:
        forked: run ``attn-zoo WORDS`` in a forked process, which saves seconds of imports.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR")}
    given = {**inherited, "TERM": "xterm-256color", **environment}
    process: Forked | subprocess.Popen[bytes]
    if forked:
        process = Forked(words, cwd, given, theirs)
    else:
        process = subprocess.Popen(words, cwd=cwd, env=given, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    try:
        gaps, shown = _read(ours, process.pid)
    finally:
        if process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        with suppress(ProcessLookupError):  # its remaining child processes, too
            os.killpg(process.pid, signal.SIGKILL)
        os.close(ours)
    lines = [line.decode(errors="replace").rstrip() for line in re.split(rb"[\r\n]+", _ESCAPE.sub(b"", shown)) if line.strip()]
    return Shown(process.wait(), lines, gaps[0] if lines else float("inf"), max(gaps))


def _read(terminal: int, pid: int) -> tuple[list[float], bytes]:
    """Silence in seconds before each output and before the end, and the whole output."""
    started = time.monotonic()
    gaps, shown = [], b""
    clock, work = started, 0.0
    while time.monotonic() - started < HANG:
        ready, _, _ = select.select([terminal], [], [], 1.0)
        used = max(work, processor_seconds(pid))
        if not ready:
            continue
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the end of the output on Linux
            part = b""
        gaps.append(min(time.monotonic() - clock, used - work))
        clock, work, shown = time.monotonic(), used, shown + part
        if not part:
            return gaps, shown
    raise TimeoutError(f"not done after {HANG:g} s; it showed\n{shown.decode(errors='replace')[-2000:]}")


def processor_seconds(pid: int) -> float:
    """Processor time of a process and its descendants, in seconds; 0 if it has ended."""
    total = 0.0
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                times: Mapping[str, float] = each.cpu_times()._asdict()
                total += sum(times[name] for name in ("user", "system", "children_user", "children_system"))
    return total


def assert_fits(shown: Shown, *statuses: int) -> None:
    """Assert that a command ended with one of ``statuses`` (default 0), was not silent too long, and printed no line too wide."""
    assert shown.status in (statuses or (0,)), f"status {shown.status}\n{shown.text}"
    wide = [line for line in shown.lines if cell_len(line) > COLUMNS]
    assert not wide, "\n".join(wide)
    assert within(shown.first, SOON), f"nothing for {shown.first:.1f} s\n{shown.text}"
    assert within(shown.silence, SILENCE), f"nothing for {shown.silence:.1f} s in between\n{shown.text}"
