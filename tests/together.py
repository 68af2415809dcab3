"""Calls of a function in several processes that join each other as under torchrun. A server forks the processes."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from forked import CONTEXT
from patience import HANG


class Quiet:
    """Progress display that shows nothing."""

    def start(self, label: str, steps: int) -> None: ...
    def advance(self, step: int, loss: float, valid: float | None) -> None: ...
    def stop(self) -> None: ...


class CutShort(Quiet):
    """Progress display that ends the run after a step, as Ctrl-C would."""

    def __init__(self, after: int) -> None:
        self.after = after

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        if step == self.after:
            raise KeyboardInterrupt


class StepClock:
    """Substitute for the module ``time`` in the training loop: a step reads the clock before and after and so takes ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._reading = seconds, 0

    def perf_counter(self) -> float:
        self._reading += 1
        return self._seconds * self._reading


def meeting(count: int) -> list[dict[str, str]]:
    """Environment variables of each of ``count`` processes, by which it finds the others."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{name: str(value) for name, value in {**shared, "RANK": at, "LOCAL_RANK": at}.items()} for at in range(count)]


def together(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Results of ``function``, which must be importable from a module, in each of ``count`` processes."""
    ends, processes = [], []
    for environment in meeting(count):
        mine, told = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_work, args=(environment, function, arguments, told))
        process.start()
        told.close()
        ends.append(mine)
        processes.append(process)
    found = []
    for end in ends:
        assert end.poll(HANG), "processes wait for each other"
        found.append(end.recv())
    for process in processes:
        process.join(60)
    for result in found:
        if isinstance(result, _Failed):
            raise AssertionError(result.words)
    return found


class _Failed:
    def __init__(self, words: str) -> None:
        self.words = words


def _work(environment: Mapping[str, str], function: Callable[..., Any], arguments: Sequence[Any], told: Connection) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    try:
        told.send(function(*arguments))
    except BaseException:
        told.send(_Failed(traceback.format_exc()))


def record_watching_pickle(spec: Any, folder: Path, also: str = "") -> tuple[str, list[int], list[str]]:
    """Status and resumed steps of a run that was interrupted, resumed, recorded and read, and all classes unpickled since."""
    from attn_zoo.records import Store
    from attn_zoo.runner import run
    from attn_zoo.runner.checkpoint import Checkpoint

    folder.mkdir(exist_ok=True)
    begun = Checkpoint(folder, "known", every=2, minutes=0)
    with suppress(KeyboardInterrupt):
        run(spec, CutShort(3), None, begun)
    seen: list[str] = []
    sys.addaudithook(lambda event, found: seen.append(str(found)) if event == "pickle.find_class" else None)
    again = Checkpoint(folder, "known")
    again.open()
    Store(folder).add(run(spec, Quiet(), None, again))
    ((record,), _) = Store(folder).load()
    if also:
        torch.load(also, weights_only=False)
    return record.status, [part["step"] for part in record.environment["resumed"]], seen
