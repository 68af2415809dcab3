"""Worker processes for measurements. If one runs out of memory or time, only the current case fails."""

from __future__ import annotations

import multiprocessing
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import psutil
import torch

from attn_zoo.process_state import kept

MEMORY_SHARE = 0.75
"""Share of the machine's memory that a worker process may allocate."""

PRELOADED = ["attn_zoo.bench.bench", "attn_zoo.attention"]
"""Modules that are imported in the process from which workers are forked."""


class WorkerError(Exception):
    """Error for a failed request to a worker process.

    Args:
        kind: ``OOM``, ``time limit``, ``failed``, ``refused`` or ``no time left``.
        message: what happened, in one line.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Worker:
    """Object in a process of its own. Call its methods with ``ask``.

    If the process ended, the next request starts it again. Processes are forked from one server, because different memory
    addresses can make one process up to 5 % slower than another.

    Args:
        make: class or function that makes the object in the process. It and its arguments must be picklable.
        bounded: True to limit the process to ``MEMORY_SHARE`` of the machine's memory. It must be False for CUDA, which reserves
            far more virtual memory than it uses.
    """

    def __init__(self, make: Callable[..., object], *arguments: Any, bounded: bool = True) -> None:
        self._start = (make, arguments, bounded, torch.get_num_threads())
        self._fork()

    def ask(self, method: str, *arguments: Any, limit: float | None = None) -> Any:
        """Call a method of the object in the process, and return the result. The call may take ``limit`` seconds.

        Raises:
            WorkerError: the call ran out of memory or time, or raised an error.
        """
        if not self._process.is_alive():
            self._fork()
        try:
            self._pipe.send((method, arguments))
            if limit is not None and not self._pipe.poll(limit):
                self.stop()
                raise WorkerError("time limit", f"the request was not done after {limit:g} s")
            kind, answer = self._pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            reason = f"the process ended with status {code}"
            if code == -9:
                raise WorkerError("OOM", f"{reason}: it was killed, probably for lack of memory") from None
            raise WorkerError("failed", reason) from None
        if kind == "failed":  # after a device error the process cannot be used again
            self.stop()
        if kind != "done":
            raise WorkerError(kind, answer)
        return answer

    def stop(self) -> None:
        """Kill the process and its child processes. Child processes such as compilers ignore interrupts, and would keep running."""
        for child in _descendants(self._process.pid):
            with suppress(psutil.Error):
                child.kill()
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _fork(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *self._start), daemon=True)
        resource_tracker.ensure_running()  # before, because it unblocks interrupts when it has started
        with _no_interrupts():
            forkserver.ensure_running()
        self._process.start()
        theirs.close()


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Return a context in which this process ignores Ctrl-C. Processes that start in it ignore Ctrl-C until they end, so they do
    not print a traceback of their imports."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _descendants(pid: int | None) -> list[psutil.Process]:
    """Return the direct and indirect child processes of a process. The list is empty if the process has ended."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def out_of_memory(error: BaseException) -> bool:
    """Return True if an error means that memory ran out. In this case PyTorch raises a plain ``RuntimeError`` on a CPU."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "DefaultCPUAllocator" in str(error)


def _serve(pipe: Connection, make: Callable[..., object], arguments: tuple[Any, ...], bounded: bool, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt reaches the whole process group; the asker ends its workers
    torch.set_num_threads(threads)
    if bounded:
        limit = int(MEMORY_SHARE * psutil.virtual_memory().total)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    served = None
    while True:
        try:
            method, given = pipe.recv()
        except EOFError:  # the asking process is gone
            return
        try:
            served = make(*arguments) if served is None else served
            with kept():  # so that no row depends on another
                answer = ("done", getattr(served, method)(*given))
        except Exception as error:  # a mechanism may raise anything; the asker decides what it means
            first_line = (str(error).splitlines() or [""])[0]
            answer = ("OOM", first_line) if out_of_memory(error) else ("failed", f"{type(error).__name__}: {first_line}")
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # memory for other workers on the device, freed before the answer lets them go on
        pipe.send(answer)
