"""Records of how processes of a command died, for example by a crash of foreign code.

Each process writes a note of what it is doing into memory that its parent can read. If the process dies, its parent and the
processes that start later learn what it was doing.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

VARIABLE = "ATTN_ZOO_DEATHS"
"""Environment variable with the deaths so far, as JSON: for each activity during which processes died, such as
``the run ID``, the list of reasons.
"""
STARTED = "ATTN_ZOO_STARTED"
"""Environment variable with the time when the command started. It is set if another process continues the command when this one
dies.
"""

GRACE = 120.0
"""Seconds by which a call of a network may exceed the time limit of its run, to allow for compilation and a busy machine."""
RUN = "the run "
"""Beginning of the note that a process writes while it executes a run; the id of the run follows."""
IMPORT = "the import of plugin "
"""Beginning of the note that a process writes while it imports a plugin; the module or path of the plugin follows."""
KILLED = "was killed, probably for lack of memory"
"""Phrase that describes the end of a process by SIGKILL."""
TRIES = 2
"""Number of deaths during one run after which the run is not tried again."""
_SIZE = 2**14
_note: mmap.mmap | None = None
"""Memory shared with the process that waits for this one; None if no process does."""


def shared() -> mmap.mmap:
    """Return new memory that this process shares with the process that it forks next, for the notes of that process."""
    return mmap.mmap(-1, _SIZE)


def note_in(memory: mmap.mmap) -> None:
    """Write the notes of this process into ``memory`` from now on. The parent process reads this memory."""
    global _note
    _note = memory


def in_command() -> bool:
    """Return True if another process continues the command when this process dies."""
    return STARTED in os.environ


def read(memory: mmap.mmap) -> str:
    """Return the last note that a process wrote into ``memory``."""
    return memory[:].rstrip(b"\0").decode(errors="replace")


def note(what: str) -> None:
    """Write a note of what this process is doing, which its parent process can read."""
    if _note is not None:
        _note[:] = what.encode()[:_SIZE].ljust(_SIZE, b"\0")


@contextmanager
def during(what: str) -> Iterator[None]:
    """Return a context in which the end of this process counts as a death during the activity ``what``.

    A child process that was forked in the context ends with the context.

    Args:
        what: what the process does in the context, such as ``the run ID``.
    """
    before, here = "" if _note is None else read(_note), os.getpid()
    note(what)
    try:
        yield
    finally:
        if os.getpid() != here:
            os._exit(1)
        note(before)


def reasons(what: str) -> list[str]:
    """Return how earlier processes of this command died during the activity ``what``, in the order of their deaths."""
    found = _all().get(what, [])
    return [str(reason) for reason in found]


def add(what: str, reason: str) -> None:
    """Record how a process died during the activity ``what``. In this process and in processes that it starts later,
    ``reasons(what)`` then also returns ``reason``.
    """
    found = _all()
    os.environ[VARIABLE] = json.dumps({**found, what: [*found.get(what, []), reason]})


def _all() -> dict[str, list[str]]:
    found = json.loads(os.environ.get(VARIABLE) or "{}")
    return found if isinstance(found, dict) else {}


def go_on(process: int, stopped_by: int) -> None:
    """Continue a child process that stopped itself, because a stopped process would ignore its time limit and Ctrl-C.

    Args:
        process: id of the child process.
        stopped_by: number of the signal that stopped the process. If it is not SIGSTOP, nothing is done.
    """
    if stopped_by == signal.SIGSTOP:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


@contextmanager
def children_going_on() -> Iterator[None]:
    """Return a context that continues child processes after the signal SIGSTOP has stopped them."""
    over = threading.Event()
    watch = threading.Thread(target=_watch_children, args=(over,), daemon=True)
    if hasattr(os, "waitid"):
        watch.start()
    try:
        yield
    finally:
        over.set()


def _watch_children(over: threading.Event) -> None:
    while not over.wait(1.0):
        with suppress(ChildProcessError):
            if child := os.waitid(os.P_ALL, 0, os.WSTOPPED | os.WNOHANG):
                go_on(child.si_pid, child.si_status)


def ending(status: int) -> str:
    """Return a phrase that says how a process with this exit status ended. A negative status stands for a signal."""
    if status == -signal.SIGKILL:
        return KILLED
    if status < 0:
        with suppress(ValueError):
            return f"ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
