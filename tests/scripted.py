"""Worker processes that answer by a script, and measurements with them."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar

from attn_zoo.bench.experiment import Experiment
from attn_zoo.bench.experiments.crossover import CrossoverExperiment
from attn_zoo.bench.experiments.growth import GrowthExperiment
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.session import Session
from attn_zoo.bench.workers import WorkerError

GIVEN: dict[str, Any] = {"device": "cpu", "dim": 16, "heads": 2, "repeat_seconds": 0.0, "time_limit": 60.0}
LINFORMER = "linformer[projected_length=8]"


class Scripted:
    """A worker: a step of n tokens takes n ms, of softmax n²/16, so they meet at 16, and holds as many KiB."""

    asked: ClassVar[list[tuple[Any, ...]]] = []
    limits: ClassVar[list[float | None]] = []
    wrong: ClassVar[dict[tuple[Any, ...], str]] = {}
    """Kind of failure of the requests that begin with the words of a key: attention, method, kind of step, length, batch."""
    made: ClassVar[list[Any]] = []

    def __init__(self, make: Any, *arguments: Any, bounded: bool) -> None:
        self.attention = arguments[0].args[1].attention if len(arguments) > 1 else "matrix product"
        self.made.append((self.attention, bounded))

    def ask(self, method: str, kind: str, batch: int, length: int, limit: float | None) -> Any:
        if method == "largest_batch":  # of a length (here batch), within a budget (here length)
            return length // 2**30 + batch
        if self.attention == "matrix product":
            return (1.0,)
        self.asked.append((self.attention, method, kind, length, batch))
        self.limits.append(limit)
        for words, why in self.wrong.items():
            if words == self.asked[-1][: len(words)]:
                raise WorkerError(why, "scripted")
        cost = batch * (length**2 / 16 if self.attention == "softmax" else float(length))
        if method == "parts":
            return (1e-3 * cost,) if kind == "forward" else (0.25e-3 * cost, 0.75e-3 * cost)
        return {"held": 0, "peak": 1024 * int(cost)}[method]

    def stop(self) -> None: ...


def growth(**changes: Any) -> GrowthExperiment:
    given = {**GIVEN, "attention": ["softmax", LINFORMER], "lengths": [16], "memory_gib": 2**-10, "rounds": 3}
    return GrowthExperiment(**{**given, **changes})


def crossover(**changes: Any) -> CrossoverExperiment:
    given = {**GIVEN, "attention": [LINFORMER], "lengths": [8, 16, 32], "rounds": 7}
    return CrossoverExperiment(**{**given, **changes})


def empty(experiment: Experiment) -> Measurement:
    environment = {"cpu": "CPU of a test", "threads": 2, "torch": "2.15.0", "gpu": None}
    name = "growth" if isinstance(experiment, GrowthExperiment) else "crossover"
    return Measurement(name, experiment.identity(), experiment.protocol, environment, complete=True)


def measured(
    experiment: Experiment, done: Any = None, *, ends: float = math.inf, longest_first: bool = False
) -> tuple[Measurement, list[dict[str, Any]]]:
    """The measurement, and all that was saved on the way as it is read back."""
    saved: list[dict[str, Any]] = []
    found = empty(experiment) if done is None else Measurement.from_dict(done)
    save = lambda at: saved.append(json.loads(json.dumps(at.to_dict())))  # noqa: E731
    Session(experiment, found, save=save, ends=ends, longest_first=longest_first).run()
    return found, saved


def at(found: Measurement, label: str, kind: str, batch: int = 1, length: int = 16) -> Cell:
    return found.cells[Cell(label, kind, length, batch)]
