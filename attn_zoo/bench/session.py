"""Execution of a measurement. Worker processes measure cases in rounds, within a time limit. Values are saved after each round.

In each group of cases, some quantities are measured once, before the rounds. Then every round measures each case of the group.
Cases that already have values are not measured again. If the time limit is too short, the slowest cases are left out. If the
user named the lengths, the longest ones are measured first, so the shortest ones are left out instead.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch

from attn_zoo.bench.bench import MatrixProducts
from attn_zoo.bench.grid import Grid
from attn_zoo.bench.measurement import NO_TIME, Cell, Measurement
from attn_zoo.bench.probes import Probe
from attn_zoo.bench.workers import PRELOADED, Worker, WorkerError

LEAST_ROUNDS = 3
"""Number of rounds for a step that takes longer than ``Grid.slow_seconds``."""

LEAST_AVAILABLE = 0.2
"""If less than this share of the machine's memory is available, worker processes are ended before another one is started."""


class Session:
    """Run of an experiment. It measures every case (a layer, a kind of step and a length) that has no values yet.

    Args:
        grid: experiment that lists the cases.
        found: values that have been measured so far. New values are added to this object.
        save: function that is called with ``found`` after each round, and after the first measurements of each case.
        tell: function that is called with lines about the progress.
        ends: value of ``time.monotonic()`` at which the time limit is reached.
    """

    def __init__(
        self,
        grid: Grid,
        found: Measurement,
        *,
        save: Callable[[Measurement], None] = lambda found: None,
        tell: Callable[[str], None] = lambda line: None,
        ends: float = math.inf,
    ) -> None:
        self.grid, self.found, self._save, self._tell, self._ends = grid, found, save, tell, ends
        self._workers: dict[str, Worker] = {}
        PRELOADED.extend(module for module in grid.preloaded if module not in PRELOADED)
        known = {cell: figures.all("seconds") for cell, figures in found.cells.items()}
        self._steps = {cell: statistics.median(seconds) for cell, seconds in known.items() if seconds}
        """Approximate seconds of a cell's step."""

    def run(self) -> None:
        """Measure all cases, one group after another.

        Raises:
            WorkerError: a case failed, and ``Grid.whole_groups`` is True for the experiment.
        """
        groups = self.grid.groups()
        if "lengths" in self.grid.named and self._ends < math.inf:
            groups.sort(key=lambda cells: -max(cell.length for cell in cells))
        weights = [math.sqrt(max(cell.length for cell in cells)) for cells in groups]
        try:
            for at, cells in enumerate(groups):
                if not (self.grid.whole_groups and all(cell in self.found.cells for cell in cells)):
                    self._group(cells, weights[at] / sum(weights[at:]))  # longer lengths get more time, but not all of it
                following = groups[at + 1] if at + 1 < len(groups) else []
                self._end({self.grid.process(cell) for cell in following})
        finally:
            self._end(set())

    def forecast(self) -> str:
        """Return a sentence that says whether the time limit is long enough.

        A matrix product is timed first. The time of a step is at least its FLOPs divided by the FLOPs per second of the matrix
        product.
        """
        protocol, device = self.grid.protocol, torch.device(getattr(self.grid, "device", "cpu"))
        worker = Worker(MatrixProducts, device, environment={}, bounded=device.type == "cpu")
        rate = MatrixProducts.flops / worker.ask("parts", "forward", 1, 1, limit=None)[0]
        worker.stop()
        cells = [cell for cells in self.grid.groups() for cell in cells]
        once = sum(self._round_seconds(self.grid.flops(cell) / rate) for cell in cells)
        rounds = self.grid.fewest_rounds if protocol is None else protocol.rounds
        least, most, left = self.grid.fewest_rounds * once, rounds * once, self.left()
        counts = f"{least:,.0f} s for {self.grid.fewest_rounds} round{'s' * (self.grid.fewest_rounds > 1)}"
        counts += f" and {most:,.0f} s for {rounds}" if rounds > self.grid.fewest_rounds else ""
        gone = "the shortest lengths" if "lengths" in self.grid.named else "the slowest measurements"
        short = f"this is too little, so {gone} will be left out. Give more time with seconds="
        said = "that should suffice" if most <= left else "fewer rounds will be taken" if least <= left else short
        return f"{len(cells)} measurements need at least {counts}, and {left:,.0f} s are given: {said}"

    def left(self) -> float:
        """Return the seconds until the time limit."""
        return self._ends - time.monotonic()

    def _left_or_stop(self) -> float:
        if (left := self.left()) <= 0:
            raise WorkerError(NO_TIME, "before the measurement started")
        return left

    def _group(self, cells: Sequence[Cell], share: float) -> None:
        if not self.grid.whole_groups:
            for cell in cells:  # so that a file of an interrupted measurement has every cell of the lengths that it reached
                self.found.of(cell)
        for cell in cells:
            if self._prepare(cell) and not self.grid.whole_groups:
                self._save(self.found)
        timed = self.grid.timed(cells, self.found)
        self._stop_slowest(timed)
        self._rounds(timed, share * self.left())
        self.grid.summarise(cells, self.found)
        self._save(self.found)

    def _prepare(self, cell: Cell) -> bool:
        """Measure those quantities of a cell that are measured once and have no value. Return True if there was one."""
        figures, probes = self.found.of(cell), self.grid.once(cell)
        missing = [probe for probe in probes if probe.quantity not in figures.values and probe.quantity not in figures.failures]
        if missing or not (figures.values or figures.failures):
            self._tell(f"{cell.label} at {cell.length}, {cell.kind}")
            if why := self.grid.refusal(cell) or self._too_slow(cell):
                self._fail(cell, [*missing, *self.grid.each(cell)][0], why)
        for probe in missing:
            if probe.quantity not in figures.failures:
                self.grid.warm_up(cell)
                started = time.monotonic()
                self._take(cell, probe)
                if cell not in self._steps:  # estimate: one step to warm up, one to measure
                    self._steps[cell] = (time.monotonic() - started) / 2
        return bool(missing)

    def _rounds(self, cells: Sequence[Cell], share: float) -> None:
        """Measure the cells in the smallest allowed number of rounds, and in more rounds until ``share`` seconds have passed."""
        protocol, started, taken = self.grid.protocol, time.monotonic(), 0
        if protocol is None:
            return
        for turn in range(protocol.rounds):
            open_ = [(cell, probe) for cell in cells for probe in self.grid.each(cell) if self._is_open(cell, probe, turn)]
            if not open_:
                continue
            now = time.monotonic() - started
            if self.left() <= 0 or (turn >= self.grid.fewest_rounds and now + now / max(1, taken) > share):
                break
            for cell, _ in open_:
                self._worker(cell)  # all workers run before the first is timed
            self._tell(f"length {max(cell.length for cell in cells)}: round {turn + 1} of {protocol.rounds}")
            for cell in self.grid.visits(cells, turn):
                for probe in self.grid.each(cell):
                    if self.left() > 0 and self._is_open(cell, probe, turn):  # a cell that misses the last round lacks a figure
                        self._take(cell, probe)
            taken += 1
            if not self.grid.whole_groups:
                self._save(self.found)

    def _is_open(self, cell: Cell, probe: Probe, turn: int) -> bool:
        figures = self.found.of(cell)
        values = figures.values.get(probe.quantity, [])
        slow = len(values) >= LEAST_ROUNDS and min(figures.all(probe.quantity)) > self.grid.slow_seconds
        return not (slow or len(values) > turn or probe.quantity in figures.failures)

    def _take(self, cell: Cell, probe: Probe) -> None:
        figures, time_limit = self.found.of(cell), getattr(self.grid, "time_limit", math.inf)

        def ask(method: str, *arguments: Any) -> Any:
            limit = min(time_limit, self._left_or_stop())
            return self._worker(cell).ask(method, *arguments, limit=None if limit == math.inf else limit)

        try:
            self._left_or_stop()
            for quantity, value in probe.take(ask, figures).items():
                figures.values.setdefault(quantity, []).append(value)
                if quantity == "seconds":
                    self._steps[cell] = figures.all(quantity)[-1]
        except WorkerError as error:
            if self.grid.whole_groups:
                raise
            over = error.kind == "time limit" and self.left() <= 0
            self._fail(cell, probe, f"{NO_TIME}: {error}" if over else str(error))
        except ValueError as error:
            self._fail(cell, probe, f"failed: {error}")

    def _fail(self, cell: Cell, probe: Probe, why: str) -> None:
        """Record a failure. If the probe is needed, record it for all quantities of the cell that have no value."""
        figures = self.found.of(cell)
        once = [each for each in self.grid.once(cell) if each.quantity not in figures.values]
        for each in (probe, *once, *self.grid.each(cell)) if probe.needed else (probe,):
            figures.failures.setdefault(each.quantity, why)

    # Time

    def _round_seconds(self, step: float) -> float:
        """Return the approximate seconds that one cell takes in a round. ``step`` is the seconds of its step."""
        protocol = self.grid.protocol
        return step if protocol is None else max(protocol.seconds, step) + protocol.warmup * step

    def _too_slow(self, cell: Cell) -> str | None:
        step = expected_seconds(self._steps, cell)
        needed, left = self.grid.fewest_rounds * self._round_seconds(step), self.left()
        return self._no_time(step, needed) if step and needed > left else None

    def _stop_slowest(self, cells: Sequence[Cell]) -> None:
        """Leave out the slowest measurements until the rounds of the others fit into the remaining time."""
        last = self.grid.fewest_rounds - 1
        lacking = [cell for cell in cells if any(self._is_open(cell, probe, last) for probe in self.grid.each(cell)[:1])]
        going = sorted(lacking, key=lambda cell: self._steps.get(cell, 0.0))
        while going:
            needed = (last + 1) * sum(self._round_seconds(self._steps.get(cell, 0.0)) for cell in going)
            if needed <= self.left():
                return
            slowest = going.pop()
            self._fail(slowest, self.grid.each(slowest)[0], self._no_time(self._steps.get(slowest, 0.0), needed))

    def _no_time(self, step: float, needed: float) -> str:
        return (
            f"{NO_TIME}: a step takes about {step:.3g} s, so {needed:.0f} s are needed, and {max(0.0, self.left()):.0f} s are left"
        )

    # Processes

    def _worker(self, cell: Cell) -> Worker:
        name = self.grid.process(cell)
        if name not in self._workers:
            while self._workers and (memory := psutil.virtual_memory()).available < LEAST_AVAILABLE * memory.total:
                self._workers.popitem()[1].stop()  # the newest, which a round in turn needs last
            environment = {} if self.grid.protocol is None else self.grid.protocol.environment()
            bounded = getattr(self.grid, "device", "cpu") == "cpu"
            self._workers[name] = Worker(*self.grid.maker(cell), environment=environment, bounded=bounded)
        return self._workers[name]

    def _end(self, kept: set[str]) -> None:
        for name in [name for name in self._workers if name not in kept]:
            self._workers.pop(name).stop()


def expected_seconds(steps: dict[Cell, float], cell: Cell) -> float:
    """Return the expected seconds of one step of a case (``cell``). Return 0 if the layer was not measured at a shorter length.

    The result is extrapolated from the seconds of the same layer at the two longest of the shorter lengths, by a power law with an
    exponent from 1 to 2.

    Args:
        steps: measured seconds of a step, by case.
    """
    wanted = cell.label, cell.kind, cell.group
    alike = {c.length: seconds / c.batch for c, seconds in steps.items() if (c.label, c.kind, c.group) == wanted}
    below = sorted((length, seconds) for length, seconds in alike.items() if length < cell.length)[-2:]
    if not below:
        return 0.0
    exponent = 1.0
    if len(below) == 2:
        (n, before), (m, last) = below
        exponent = min(2.0, max(1.0, math.log(last / before) / math.log(m / n)))
    return cell.batch * below[-1][1] * (cell.length / below[-1][0]) ** exponent
