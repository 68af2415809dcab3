"""Execution of a command in a child process. If a plugin ends this process, the command continues in a new child process."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from attn_zoo import deaths

_ENDED = "ended with status "
"""Beginning of the note that a child process leaves when its command is done. The exit status follows."""
PATIENCE = 60.0
"""Maximum number of seconds between the end of a command and the end of its process."""
_PASSED_ON = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH")
_STOPS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM) if sys.platform != "win32" else ()


def supervised(command: Callable[[], int]) -> int:
    """Run a command in a child process and return its exit status. What follows if the child process dies depends on what it was
    doing:

    - If it was importing a plugin, a new process continues the command without this plugin.
    - If it was executing a run, a new process tries the run again. After two deaths, the run is recorded as failed.
    - Otherwise, the command ends with a status other than 0.

    A new process does not repeat runs that this command has recorded, even as failed.

    The command runs in the present process if there is no ``fork``, or if the process has threads or has imported PyTorch, because
    it must not be forked then.
    """
    if not hasattr(os, "fork") or threading.active_count() > 1 or "torch" in sys.modules:
        return command()
    os.environ[deaths.STARTED] = datetime.now(UTC).isoformat(timespec="seconds")
    while True:
        memory = deaths.shared()
        sys.stdout.flush()
        sys.stderr.flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_numbers(), signal.SIGCHLD, signal.SIGTSTP})
        parent, child = os.getpid(), os.fork()
        if child == 0:
            _die_with(parent)
            return _child(command, memory, before)
        stopped, status = _wait(child)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        note = deaths.read(memory)
        if note.startswith(_ENDED):
            return int(note.removeprefix(_ENDED))
        if stopped:  # from outside; the child has handled the signal, or had no handler
            return 128 + stopped
        reason = deaths.ending(status)
        tries = deaths.TRIES if note.startswith(deaths.RUN) else int(note.startswith(deaths.IMPORT))
        if len(deaths.reasons(note)) >= tries:
            where = f" during {note}" if note else ""
            print(f"attn-zoo: the process of this command {reason}{where}", file=sys.stderr)
            return 1
        deaths.add(note, reason)


def _numbers() -> set[signal.Signals]:
    return {signal.Signals[name] for name in _PASSED_ON}


def _child(command: Callable[[], int], memory: mmap.mmap, mask: set[int | signal.Signals]) -> int:
    """Execute the command in a group of processes of its own, which receives each signal once, from the process that waits."""
    os.setpgid(0, 0)
    _end_forked_with_this()
    deaths.note_in(memory)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    status = 1
    try:
        status = command()
        return status
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        raise
    finally:
        deaths.note(f"{_ENDED}{status}")
        gc.freeze()  # what is left ends with the process: searching it for garbage takes a tenth of the time of a large table
        waiting = threading.Timer(PATIENCE, _leave, [status])
        waiting.daemon = True
        waiting.start()


def _leave(status: int) -> None:
    """End the process of a command that is done, but that a thread or a function of ``atexit`` keeps alive."""
    names = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    what = f"threads that go on ({', '.join(map(repr, names))})" if names else "a function that was registered with atexit"
    print(f"attn-zoo: the command was done {PATIENCE:g} seconds ago, but is kept alive by {what}; it ends now", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _die_with(parent: int) -> None:
    """Ask the system to kill this process when its parent has ended, so that a killed command does not go on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def _end_forked_with_this() -> None:
    """Let processes that the main thread forks end with this one, because a run may fork and its copy may hang."""
    main = list[bool]()
    os.register_at_fork(
        before=lambda: main.append(threading.current_thread() is threading.main_thread()),
        after_in_parent=lambda: main.pop(),
        after_in_child=lambda: _die_with(os.getppid()) if main.pop() else None,
    )


def _wait(child: int) -> tuple[int, int]:
    """Pass signals on until the child has ended; return the last of them that ends a process, or 0, and the exit status."""
    stopped = 0
    with suppress(OSError):
        os.setpgid(child, child)  # here too, because either process may be the first
    while True:
        number: int = signal.sigwait({*_numbers(), signal.SIGCHLD, signal.SIGTSTP})
        if number == signal.SIGCHLD:
            changed, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
            if changed and os.WIFSTOPPED(status):
                deaths.go_on(child, os.WSTOPSIG(status))
            elif changed:
                for pending in signal.sigpending() & set(_STOPS):
                    stopped = signal.sigwait({pending})
                return stopped, os.waitstatus_to_exitcode(status)
            continue
        with suppress(OSError):
            os.killpg(child, signal.SIGSTOP if number == signal.SIGTSTP else number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
            with suppress(OSError):
                os.killpg(child, signal.SIGCONT)
        stopped = number if number in _STOPS else stopped
