"""How time and memory of a layer grow with length on this machine: interleaved timings, fitted exponents."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from attn_zoo.cost.bench import Bench, Subject, build_layer
from attn_zoo.cost.protocol import TimingProtocol
from attn_zoo.cost.workers import Worker, WorkerError

KINDS = {"forward": "forward", "backward": "training"}
"""Directions as the points name them, and as the bench does."""


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
    subjects: Sequence[Subject],
    lengths: Sequence[int],
    *,
    dim: int,
    heads: int,
    protocol: TimingProtocol,
    tell: Callable[[str], None],
) -> list[Point]:
    """Time every subject at every length, in the rounds of the protocol, which visit all of them.

    Each subject lives in a process of its own, so that running out of memory is a cell and not the
    end, and no subject inherits another's heap.

    Args:
        tell: called with a line of progress now and then.
    """
    environment = protocol.environment()
    workers = [Worker(Bench, partial(build_layer, subject, dim, heads), dim, environment=environment) for subject in subjects]
    cells = [(at, n, direction) for n in lengths for at in range(len(subjects)) for direction in KINDS]
    peaks: dict[tuple[int, int, str], int] = {}
    times: dict[tuple[int, int, str], list[float]] = {}
    failures: dict[tuple[int, int], list[str]] = {}
    try:
        for at, n, direction in cells:
            try:
                peaks[at, n, direction] = workers[at].ask("peak", KINDS[direction], 1, n)
            except WorkerError as error:
                failures.setdefault((at, n), []).append(f"{direction}: {error}")
        for turn in range(protocol.rounds):
            tell(f"round {turn + 1} of {protocol.rounds}")
            for at, n, direction in protocol.ordered(cells, turn):
                if (at, n, direction) not in peaks:
                    continue
                try:
                    seconds, _ = workers[at].ask("seconds", KINDS[direction], 1, n, protocol.seconds)
                    times.setdefault((at, n, direction), []).append(seconds)
                except WorkerError as error:
                    failures.setdefault((at, n), []).append(f"{direction}: {error}")
    finally:
        for worker in workers:
            worker.stop()
    return [
        Point(
            subject,
            n,
            _spread(protocol, times.get((at, n, "forward"))),
            _spread(protocol, times.get((at, n, "backward"))),
            peaks.get((at, n, "forward")),
            peaks.get((at, n, "backward")),
            "; ".join(failures[at, n]) if (at, n) in failures else None,
        )
        for at, subject in enumerate(subjects)
        for n in lengths
    ]


def _spread(protocol: TimingProtocol, seconds: Sequence[float] | None) -> tuple[float, float, float] | None:
    return protocol.spread(seconds) if seconds else None
