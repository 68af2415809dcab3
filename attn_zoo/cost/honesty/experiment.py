"""Whether the timings of this machine can be believed.

A is ``PASSES`` passes through one layer. ``same`` is A once more; ``slower`` is one pass more, so that it costs a tenth more by
construction and not by a clock's word. Each lives in a process of its own, as subjects do everywhere here. A repeat visits the
three in shuffled rounds and compares both with A; the claim is that ``same`` ties and ``slower`` is found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from attn_zoo.cost.bench import Subject, build_layer
from attn_zoo.cost.compare import compare, fewest_rounds
from attn_zoo.cost.protocol import TimingProtocol
from attn_zoo.cost.timing import quartiles
from attn_zoo.cost.workers import Worker

PASSES = 10

STEPS: Mapping[str, int] = {"first": PASSES, "same": PASSES, "slower": PASSES + 1}
"""Passes of a step by the name of its process."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is timed, and how often.

    Raises:
        ValueError: a value breaks its rule.
    """

    subject: Subject
    length: int
    dim: int
    heads: int
    repeats: int
    """Comparisons of each kind."""
    fresh_every: int
    """Repeats after which the processes are started anew, since each lies differently in memory."""
    smallest_difference: float
    time_limit: float
    """Seconds that one visit may take."""
    protocol: TimingProtocol
    """Of ``most_repeats`` timed steps of a visit the fastest counts: what others take of the machine only ever adds."""

    def __post_init__(self) -> None:
        if self.heads < 1 or self.dim < 1 or self.dim % self.heads:
            raise ValueError(f"dim must be divisible by heads, both at least 1; got dim={self.dim} and heads={self.heads}")
        for name in ("length", "repeats", "fresh_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.protocol.rounds < fewest_rounds():
            raise ValueError(f"rounds must be at least {fewest_rounds()} for an interval; got {self.protocol.rounds}")
        if not 0 <= self.smallest_difference < 1 / PASSES:
            raise ValueError(f"smallest_difference must lie from 0 to below {1 / PASSES:g}; got {self.smallest_difference}")
        if self.time_limit <= 0:
            raise ValueError(f"time_limit must be above 0; got {self.time_limit}")
        build_layer(self.subject, self.dim, self.heads, self.length)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, without the protocol, which stands beside it."""
        return {name: value for name, value in asdict(self).items() if name != "protocol"}


class Passes:
    """A layer and one sequence of noise; it lives in a worker's process."""

    def __init__(self, subject: Subject, dim: int, heads: int, length: int) -> None:
        torch.manual_seed(0)
        self._layer = build_layer(subject, dim, heads, length).eval()
        self._tokens = torch.randn(1, length, dim)

    def fastest(self, passes: int, steps: int, warmup: int) -> float:
        """Seconds of the fastest of ``steps`` steps of so many passes, after ``warmup`` that are not timed."""
        for _ in range(warmup):
            self._step(passes)
        return min(self._step(passes) for _ in range(steps))

    def _step(self, passes: int) -> float:
        started = time.perf_counter()
        with torch.inference_mode():
            for _ in range(passes):
                self._layer(self._tokens)
        return time.perf_counter() - started


def measure(
    setting: Setting,
    *,
    tell: Callable[[str], None],
    save: Callable[[list[dict[str, Any]]], None],
    done: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Both comparisons of every repeat, as plain data.

    Args:
        tell: called with a line of progress now and then.
        save: called with the points so far after each repeat.
        done: points of an earlier measurement under the same setting, which are not measured again.

    Raises:
        WorkerError: a process failed or was too slow; without it there is nothing to show.
    """
    points = list(done)
    while len(points) < setting.repeats:
        with _workers(setting) as workers:
            for repeat in range(len(points), min(setting.repeats, len(points) + setting.fresh_every)):
                points.append(_repeat(setting, repeat, workers, tell))
                save(points)
    return points


def take_turns(protocol: TimingProtocol, clocks: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Seconds by name, one a round, each round in the protocol's order."""
    taken: dict[str, list[float]] = {name: [] for name in clocks}
    for turn in range(protocol.rounds):
        for name in protocol.ordered(list(clocks), turn):
            taken[name].append(clocks[name]())
    return taken


def _repeat(setting: Setting, repeat: int, workers: Mapping[str, Worker], tell: Callable[[str], None]) -> dict[str, Any]:
    protocol = replace(setting.protocol, seed=1000 * setting.protocol.seed + repeat)  # no order twice

    def clock(name: str) -> Callable[[], float]:
        request = (STEPS[name], protocol.most_repeats, protocol.warmup)
        return lambda: float(workers[name].ask("fastest", *request, limit=setting.time_limit))

    taken = take_turns(protocol, {name: clock(name) for name in STEPS})
    compared = {name: compare(taken["first"], taken[name], smallest=setting.smallest_difference) for name in ("same", "slower")}
    for name, comparison in compared.items():
        tell(f"repeat {repeat + 1} of {setting.repeats}, {name}: {comparison.describe()}")
    return {
        "repeat": repeat,
        "seconds": {name: quartiles(seconds) for name, seconds in taken.items()},
        **{name: {"verdict": comparison.verdict, **asdict(comparison)} for name, comparison in compared.items()},
    }


@contextmanager
def _workers(setting: Setting) -> Iterator[dict[str, Worker]]:
    place = (setting.subject, setting.dim, setting.heads, setting.length)
    workers = {name: Worker(Passes, *place, environment=setting.protocol.environment()) for name in STEPS}
    try:
        for name, worker in workers.items():  # the first visit also loads libraries
            worker.ask("fastest", STEPS[name], 1, setting.protocol.warmup)
        yield workers
    finally:
        for worker in workers.values():
            worker.stop()
