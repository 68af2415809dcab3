"""The measurement: ceilings, then results, then times, each part in processes of its own and within the time that there is.

Whatever fails is a point that says so. Every point is saved when it is there, and what is there is not measured again, but
for the ceilings, which belong to the points of one call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from attn_zoo.cost.linformer_kernels.cases import cases
from attn_zoo.cost.linformer_kernels.setting import Cell, Limits, Setting, cells
from attn_zoo.cost.workers import Worker, WorkerError

Point = dict[str, Any]


class TimeIsUpError(Exception):
    """The measurement has not ended, and may be gone on with."""


def measure(
    setting: Setting,
    limits: Limits,
    *,
    tell: Callable[[str], None],
    save: Callable[[list[Point]], None],
    done: Sequence[Point] = (),
) -> list[Point]:
    """Everything, as plain data.

    Args:
        tell: called with a line of progress now and then.
        save: called with the points so far whenever there is a new one.
        done: points of an earlier call under the same setting.

    Raises:
        TimeIsUpError: ``limits.seconds`` were over before the end.
    """
    call = 1 + max((point["call"] for point in done), default=0)
    run = _Run(setting, limits, tell, save, call, list(done), time.monotonic() + limits.seconds)
    if setting.device == "cuda":
        run.ceilings()
    run.check()
    if setting.device == "cuda":
        run.time()
    return run.points


@dataclass
class _Run:
    """One call of ``measure``."""

    setting: Setting
    limits: Limits
    tell: Callable[[str], None]
    save: Callable[[list[Point]], None]
    call: int
    points: list[Point]
    deadline: float
    had: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.had = {point["key"] for point in self.points}

    def ceilings(self) -> None:
        self.tell("ceilings of this machine")
        with _worker(_machine, environment=_COMPILED) as worker:
            self._add(f"ceilings|{self.call}", {"part": "ceilings"}, worker, "ceilings")

    def check(self) -> None:
        """Some processes at a time, since compiling takes longer than computing."""
        left = [case for case in cases(self.setting) if case.key not in self.had]
        many = min(self.limits.workers, len(left))
        self.tell(f"results: {len(left)} cases, {many} at a time")
        on_gpu = self.setting.device == "cuda"
        environment = _REPEATABLE if on_gpu else _INTERPRETED
        arguments = ("cuda" if on_gpu else "cpu", self.setting.sharing)
        workers = [Worker(_checks, *arguments, environment=environment, bounded=not on_gpu) for _ in range(many)]
        waiting = iter(left)
        with ThreadPoolExecutor(max(1, many)) as pool:
            try:
                first = zip(workers, waiting, strict=False)
                running = {pool.submit(self._ask, worker, "check", case): (worker, case) for worker, case in first}
                while running:
                    ready, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in ready:
                        worker, case = running.pop(future)
                        self._keep(case.key, {"part": "check", "case": asdict(case)}, future.result())
                        if (following := next(waiting, None)) is not None:
                            running[pool.submit(self._ask, worker, "check", following)] = (worker, following)
            finally:
                for worker in workers:
                    worker.stop()

    def time(self) -> None:
        left = [cell for cell in cells(self.setting) if cell.key not in self.had]
        for part, own in self._parts(left):
            self.tell(f"{part}: {len(own)} cells, {self.deadline - time.monotonic():.0f} s left")
            with _worker(_timings, self.setting, environment=_COMPILED) as worker:
                for cell in own:
                    self._add(cell.key, {"part": "time", "cell": asdict(cell)}, worker, "measure", cell)

    def _parts(self, left: Iterable[Cell]) -> list[tuple[str, list[Cell]]]:
        """Cells of one part together, and those of another precision, in the order in which they first come."""
        found: dict[str, list[Cell]] = {}
        for cell in left:
            found.setdefault(cell.part if cell.precision == self.setting.precision else cell.precision, []).append(cell)
        return list(found.items())

    def _add(self, key: str, facts: Point, worker: Worker, method: str, *arguments: Any) -> None:
        self._keep(key, facts, self._ask(worker, method, *arguments))

    def _keep(self, key: str, facts: Point, found: Point) -> None:
        self.points.append({"key": key, "call": self.call, **facts, **found})
        self.save(self.points)

    def _ask(self, worker: Worker, method: str, *arguments: Any) -> Point:
        """What the worker found, or its failure.

        Raises:
            TimeIsUpError: the whole measurement's time ended before that of the request.
        """
        remaining = self.deadline - time.monotonic()
        limit = min(self.limits.time_limit, remaining)
        if limit <= 0:
            raise TimeIsUpError
        try:
            found: Point = worker.ask(method, *arguments, limit=limit)
            return found
        except WorkerError as error:
            if error.kind == "time limit" and limit < self.limits.time_limit:
                raise TimeIsUpError from None
            return {"failure": str(error)}


_COMPILED = {"TRITON_INTERPRET": "0"}

_REPEATABLE = {**_COMPILED, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""PyTorch's matrix products are the same on every run, so that a difference is the kernels'."""

_INTERPRETED = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OPENBLAS_NUM_THREADS": "1"}
"""Triton decides when it is imported; numpy's threads would only fight with PyTorch's."""


@contextmanager
def _worker(make: Callable[..., object], *arguments: Any, environment: dict[str, str]) -> Iterator[Worker]:
    worker = Worker(make, *arguments, environment=environment, bounded=False)
    try:
        yield worker
    finally:
        worker.stop()


# Kernels are imported in the worker alone: the asking process needs no Triton, and must not decide how they run.


def _machine() -> object:
    from attn_zoo.cost.linformer_kernels.clock import Machine

    return Machine()


def _checks(device: str, sharing: str) -> object:
    from attn_zoo.cost.linformer_kernels.checks import Checks

    return Checks(device, sharing)


def _timings(setting: Setting) -> object:
    from attn_zoo.cost.linformer_kernels.timings import Timings

    return Timings(setting, torch.device("cuda", 0))
