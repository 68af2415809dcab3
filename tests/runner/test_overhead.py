"""What measuring adds to a training step of the runner: the rest of its loop, beside the step itself, and the profiled step.

Two runs, one with and one without measuring, differ by more than that on a busy machine. So each step is its own control: in the
same thread, a clock around the loop's body and one around what it is there for, drawing a batch and training on it. What lies
between them is the runner's clocks, its bookkeeping and its words to whoever watches: all that measuring can have added.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest
from accelerate import Accelerator

from attn_zoo import registry
from attn_zoo.contract import SPLITS
from attn_zoo.encoder import build_paired_model
from attn_zoo.records import Budget
from attn_zoo.runner import train as loop

STEPS = 100

SHORTEST_RUN = 300
"""Steps of the shortest budget in a table of ours, that of the quickstart's ListOps: over so many the profiled step spreads."""

ADDED_AT_MOST = 0.02


class Watch:
    """Processor seconds of this thread, by step: of the loop's body, and of the work in it."""

    def __init__(self) -> None:
        self.body: list[float] = []
        self.work: list[float] = []
        self._worked, self._since = 0.0, 0.0

    def working(self, function: Any) -> Any:
        """``function``, its time counted as work."""

        def worked(*arguments: Any) -> Any:
            started = time.thread_time()
            result = function(*arguments)
            self._worked += time.thread_time() - started
            return result

        return worked

    def advance(self, step: int, loss: float, valid: float | None) -> None:
        self.body.append(time.thread_time() - self._since)
        self.work.append(self._worked)
        self._worked, self._since = 0.0, time.thread_time()

    def start(self, label: str, steps: int) -> None: ...

    def stop(self) -> None: ...


def watched(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """A small training run, watched."""
    watch, batches = Watch(), loop.batches

    def drawn(*arguments: Any) -> Iterator[Any]:
        draw = watch.working(batches(*arguments).__next__)
        while True:
            yield draw()

    monkeypatch.setattr(loop, "_step", watch.working(loop._step))
    monkeypatch.setattr(loop, "batches", drawn)
    task = registry.build_task("listops", train=200, valid=8, test=8, length=64)
    sizes = {"dim": 32, "depth": 1, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0}
    model = build_paired_model(task.spec, seed=1, attention="softmax", options={}, **sizes)
    budget = Budget(steps=STEPS, batch_size=16, evaluate_every=STEPS, max_seconds=600)
    splits = {split: task.examples(split) for split in SPLITS}
    loop.train(model, task, splits, budget, 1, Accelerator(cpu=True), watch, loop.Trained())
    return watch


def added(watch: Watch) -> float:
    """Share of the work that the rest of the body adds, step by step: the median of the steps that are not profiled."""
    pairs = list(zip(watch.body, watch.work, strict=True))[2:-1]  # the first allocates, the last looks at validation
    return statistics.median((body - work) / work for body, work in pairs)


def test_measuring_adds_less_than_two_percent_to_a_training_step(monkeypatch):
    watch = watched(monkeypatch)
    assert len(watch.body) == STEPS
    profiled = (watch.body[1] - statistics.median(watch.work)) / (SHORTEST_RUN * statistics.median(watch.work))
    assert 0 < added(watch) + profiled < ADDED_AT_MOST, f"{added(watch):.3%} a step, {profiled:.3%} for the profiled one"


def test_an_overhead_of_three_percent_would_be_seen(monkeypatch):
    """A clock that takes its time, as long as 3 % of a step of the run before."""
    step = statistics.median(watched(monkeypatch).work)

    class SlowClock:
        def perf_counter(self) -> float:
            until = time.thread_time() + 0.015 * step  # it is asked twice a step
            while time.thread_time() < until:
                pass
            return time.perf_counter()

    monkeypatch.undo()
    monkeypatch.setattr(loop, "time", SlowClock())
    assert added(watched(monkeypatch)) > ADDED_AT_MOST
