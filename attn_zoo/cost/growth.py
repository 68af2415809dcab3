"""How time and memory of a layer grow with length on this machine: interleaved timings, fitted exponents."""

from __future__ import annotations

import math
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import psutil
import torch

from attn_zoo.cost.measured import peak_bytes
from attn_zoo.layer import MultiHeadAttention

MEMORY_SHARE = 0.75
"""A worker that asks for more than this share of the machine's memory is refused it, and the cell says so."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One layer to measure: a mechanism with its options and implementation."""

    attention: str
    options: Mapping[str, Any]
    implementation: str = "eager"


@dataclass(frozen=True, slots=True)
class Point:
    """Figures of one subject at one length, batch of one. Seconds are medians over rounds, with their quartiles."""

    subject: Subject
    length: int
    forward_seconds: tuple[float, float, float] | None
    """Lower quartile, median, upper quartile; None when it could not run."""
    backward_seconds: tuple[float, float, float] | None
    """Forward and backward together."""
    forward_peak_bytes: int | None
    backward_peak_bytes: int | None
    failure: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def fit_exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """Slope of log value over log length, by least squares: 1 is linear, 2 quadratic."""
    x, y = [math.log(n) for n in lengths], [math.log(v) for v in values]
    return statistics.linear_regression(x, y).slope


def measure_growth(
    subjects: Sequence[Subject], lengths: Sequence[int], *, dim: int, heads: int, rounds: int, tell: Callable[[str], None]
) -> list[Point]:
    """Time every subject at every length, in ``rounds`` rounds that visit all of them in turn.

    Each subject lives in a process of its own, so that running out of memory is a cell and not the
    end, and no subject inherits another's heap.

    Args:
        tell: called with a line of progress now and then.
    """
    workers = [_Worker(subject, dim, heads) for subject in subjects]
    peaks: dict[tuple[int, int], list[int | None]] = {}
    times: dict[tuple[int, int, str], list[float]] = {}
    failures: dict[tuple[int, int], str] = {}
    try:
        for at in range(len(subjects)):
            for n in lengths:
                asked = [_ask(workers[at], (kind, "peak", n), failures, (at, n)) for kind in ("forward", "backward")]
                peaks[at, n] = [None if peak is None else int(peak) for peak in asked]
        for turn in range(rounds):
            tell(f"round {turn + 1} of {rounds}")
            for n in lengths:
                for at, worker in enumerate(workers):
                    for kind, peak in zip(("forward", "backward"), peaks[at, n], strict=True):
                        if peak is not None:
                            seconds = _ask(worker, (kind, "time", n), failures, (at, n))
                            if seconds is not None:
                                times.setdefault((at, n, kind), []).append(seconds)
    finally:
        for worker in workers:
            worker.stop()
    return [
        Point(
            subject,
            n,
            _quartiles(times.get((at, n, "forward"))),
            _quartiles(times.get((at, n, "backward"))),
            peaks[at, n][0],
            peaks[at, n][1],
            failures.get((at, n)),
        )
        for at, subject in enumerate(subjects)
        for n in lengths
    ]


class _Worker:
    """A process that holds one subject and does what it is asked, with a bound on its memory."""

    def __init__(self, subject: Subject, dim: int, heads: int) -> None:
        self._start = (subject, dim, heads)
        self._spawn()

    def _spawn(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, *self._start, torch.get_num_threads()), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, request: tuple[str, str, int]) -> float:
        self.pipe.send(request)
        try:
            answer = self.pipe.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            self._spawn()
            raise MemoryError(f"the process ended with status {code}, as it does when the system takes its memory") from None
        if isinstance(answer, str):
            raise MemoryError(answer)
        return float(answer)

    def stop(self) -> None:
        self.process.terminate()
        self.process.join()


def _ask(worker: _Worker, request: tuple[str, str, int], failures: dict[tuple[int, int], str], at: tuple[int, int]) -> float | None:
    try:
        return worker.ask(request)
    except MemoryError as error:
        failures[at] = f"{request[0]}: {error}"
        return None


def _serve(pipe: Connection, subject: Subject, dim: int, heads: int, threads: int) -> None:
    torch.set_num_threads(threads)
    limit = int(MEMORY_SHARE * psutil.virtual_memory().total)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    while True:
        kind, what, length = pipe.recv()
        try:
            step = _step(subject, dim, heads, length, backward=kind == "backward")
            step()
            if what == "peak":
                pipe.send(peak_bytes(step, torch.device("cpu")))
                continue
            started = time.perf_counter()
            step()
            pipe.send(time.perf_counter() - started)
        except (RuntimeError, MemoryError) as error:
            pipe.send(str(error).splitlines()[0])


def _step(subject: Subject, dim: int, heads: int, length: int, *, backward: bool) -> Callable[[], object]:
    torch.manual_seed(0)
    layer = MultiHeadAttention(
        dim, heads, subject.attention, length=length, implementation=subject.implementation, **dict(subject.options)
    )
    tokens = torch.randn(1, length, dim, requires_grad=backward)
    if not backward:
        layer.eval()

        def forward() -> object:
            with torch.inference_mode():
                return layer(tokens)

        return forward

    def forward_and_backward() -> None:
        layer(tokens).square().mean().backward()
        layer.zero_grad(set_to_none=True)
        tokens.grad = None

    return forward_and_backward


def _quartiles(seconds: Sequence[float] | None) -> tuple[float, float, float] | None:
    if not seconds:
        return None
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else (seconds[0],) * 3
    return low, middle, high
