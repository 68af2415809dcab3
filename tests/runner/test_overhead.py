"""Overhead of measuring in a training step of the runner: the rest of the loop's body, and the profiled step.

On a busy machine, two runs with and without measuring differ by more than this overhead. So each step is its own control: in the
same thread, one clock times the loop's body and another its work, which is drawing a batch and training on it. The difference
is the runner's clocks, its bookkeeping and its progress reports: all that measuring can have added.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import pytest
from accelerate import Accelerator
from run_helpers import Quiet

from attn_zoo import registry
from attn_zoo.contract import SPLITS
from attn_zoo.encoder import build_paired_model
from attn_zoo.records import Budget
from attn_zoo.runner import train as loop
from attn_zoo.runner.state import BatchSource

STEPS = 100

SHORTEST_RUN = 300
"""Number of steps over which the cost of the profiled step is spread: ListOps at level ``quick``, the shortest such budget."""

ADDED_AT_MOST = 0.02


class Watch(Quiet):
    """Progress display that records this thread's processor seconds in each step: of the loop's body, and of the work in it."""

    def __init__(self) -> None:
        self.body, self.work = list[float](), list[float]()
        self._worked, self._since = 0.0, 0.0

    def working(self, function: Any) -> Any:
        """Wrap ``function`` so that its time counts as work."""

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


def added(monkeypatch: pytest.MonkeyPatch) -> float:
    """Time that measuring adds to the steps of a small run, as a share of their work: in the median of the steps that do not
    allocate, are not profiled and do not evaluate, and in the profiled step."""
    watch = Watch()

    def drawn(*arguments: Any) -> Iterator[Any]:
        draw = watch.working(BatchSource(*arguments).__next__)
        while True:
            yield draw()

    monkeypatch.setattr(loop, "_step", watch.working(loop._step))
    monkeypatch.setattr(loop, "BatchSource", drawn)
    task = registry.build_task("listops", train=200, valid=8, test=8, length=64)
    sizes = {"dim": 32, "depth": 1, "heads": 2, "mlp_ratio": 2.0, "dropout": 0.0}
    model = build_paired_model(task.spec, seed=1, attention="softmax", options={}, **sizes)
    budget = Budget(steps=STEPS, batch_size=16, evaluate_every=STEPS, max_seconds=600)
    splits = {split: task.examples(split) for split in SPLITS}
    loop.train(model, splits, loop.Setup(task, budget, 1, Accelerator(cpu=True), watch))
    assert len(watch.body) == STEPS
    usual = statistics.median((body - work) / work for body, work in list(zip(watch.body, watch.work, strict=True))[2:-1])
    assert usual > 0
    work = statistics.median(watch.work)
    return usual + (watch.body[1] - work) / (SHORTEST_RUN * work)


@pytest.mark.process
def test_measuring_adds_less_than_two_percent_to_a_training_step(monkeypatch):
    shares = []
    for _ in range(3):  # the least counts, as other processes only add to it
        with monkeypatch.context() as patched:
            shares.append(added(patched))
    assert min(shares) < ADDED_AT_MOST, f"{min(shares):.3%} a step"
