"""Execution of a measurement. Worker processes measure cells in rounds, within a time limit. Values are saved after each round.

In each group of cells, some quantities are measured once, before the rounds. Then every round times each cell of the group.
Cells that already have values are not measured again. If the time limit is too short, the slowest cells are left out. If the
user named the lengths, the longest ones are measured first, so the shortest ones are left out instead.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import psutil
import torch

from attn_zoo.bench.bench import MatrixProducts
from attn_zoo.bench.compare import fit_exponent
from attn_zoo.bench.experiment import Ask, Experiment, Values
from attn_zoo.bench.measurement import NO_TIME, Cell, Measurement
from attn_zoo.bench.workers import PRELOADED, Worker, WorkerError

LEAST_AVAILABLE = 0.2
"""If less than this share of the machine's memory is available, worker processes are ended before another one is started."""


class Session:
    """Run of an experiment. It measures every cell that has no values yet.

    Args:
        experiment: experiment that lists the cells.
        found: values that have been measured so far. New values are added to this object.
        save: function that is called with ``found`` after each round, and after the first measurements of each cell.
        tell: function that is called with lines about the progress.
        ends: value of ``time.monotonic()`` at which the time limit is reached.
        longest_first: True to begin with the longest lengths, if there is a time limit.
    """

    def __init__(
        self,
        experiment: Experiment,
        found: Measurement,
        *,
        save: Callable[[Measurement], None] = lambda found: None,
        tell: Callable[[str], None] = lambda line: None,
        ends: float = math.inf,
        longest_first: bool = False,
    ) -> None:
        self.experiment, self.found, self.longest_first = experiment, found, longest_first
        self._save, self._tell, self._ends = save, tell, ends
        self._workers: dict[str, Worker] = {}
        PRELOADED.extend(module for module in experiment.preloaded if module not in PRELOADED)
        self._steps = {cell: statistics.median(seconds) for cell in found.cells if (seconds := cell.all("seconds"))}
        """Approximate seconds of a cell's step."""

    def run(self) -> None:
        """Measure all cells, one group after another."""
        groups = self.experiment.groups()
        if self.longest_first and self._ends < math.inf:
            groups.sort(key=lambda cells: -max(cell.length for cell in cells))
        weights = [math.sqrt(max(cell.length for cell in cells)) for cells in groups]
        try:
            for at, cells in enumerate(groups):
                share = weights[at] / sum(weights[at:])  # longer lengths get more time, but not all of it
                self._group([self.found.of(cell) for cell in cells], share)
                self._stop_workers({self.experiment.process(cell) for after in groups[at + 1 : at + 2] for cell in after})
        finally:
            self._stop_workers()

    def forecast(self) -> str:
        """Return a sentence that says whether the time limit is long enough.

        A matrix product is timed first. The time of a step is at least its FLOPs divided by the FLOPs per second of the matrix
        product.
        """
        protocol, device = self.experiment.protocol, torch.device(getattr(self.experiment, "device", "cpu"))
        assert protocol is not None
        worker = Worker(MatrixProducts, device, bounded=device.type == "cpu")
        rate = MatrixProducts.flops / worker.ask("parts", "forward", 1, 1, limit=None)[0]
        worker.stop()
        cells = [cell for cells in self.experiment.groups() for cell in cells]
        once = sum(self._round_seconds(self.experiment.flops(cell) / rate) for cell in cells)
        fewest = self.experiment.fewest_rounds
        least, most, left = fewest * once, protocol.rounds * once, self.left()
        counts = f"{least:,.0f} s for {fewest} round{'s' * (fewest > 1)}"
        counts += f" and {most:,.0f} s for {protocol.rounds}" if protocol.rounds > fewest else ""
        gone = "the shortest lengths" if self.longest_first else "the slowest measurements"
        short = f"this is too little, so {gone} will be left out. Give more time with seconds="
        said = "that should suffice" if most <= left else "fewer rounds will be taken" if least <= left else short
        return f"{len(cells)} measurements need at least {counts}, and {max(0.0, left):,.0f} s are left: {said}"

    def left(self) -> float:
        """Return the seconds until the time limit."""
        return self._ends - time.monotonic()

    def _group(self, cells: Sequence[Cell], share: float) -> None:
        for cell in cells:
            if self._measure_once(cell):
                self._save(self.found)
        if self.experiment.protocol is not None:
            timed = [self.found.of(cell) for cell in self.experiment.timed(cells)]
            self._leave_out_slowest(timed)
            self._rounds(timed, share * self.left())
        self._save(self.found)

    def _measure_once(self, cell: Cell) -> bool:
        """Measure those quantities of a cell that are measured once and have no value. Return True if there was one."""
        wanted = self.experiment.once(cell)
        missing = [quantity for quantity in wanted if quantity not in cell.values and quantity not in cell.failures]
        if missing or not (cell.values or cell.failures):
            self._tell(f"{cell.label} at {cell.length}, {cell.kind}")
            if why := self.experiment.refusal(cell) or self._too_slow(cell):
                self._fail(cell, "seconds" if self.experiment.protocol else missing[0], why)
        for quantity in missing:
            if quantity not in cell.failures:
                started = time.monotonic()
                self._take(cell, quantity, wanted[quantity])
                self._steps.setdefault(cell, (time.monotonic() - started) / 2)  # one step to warm up, one to measure
        return bool(missing)

    def _rounds(self, cells: Sequence[Cell], share: float) -> None:
        """Time the cells in the smallest allowed number of rounds, and in more rounds until ``share`` seconds have passed."""
        assert self.experiment.protocol is not None
        rounds, started, taken = self.experiment.protocol.rounds, time.monotonic(), 0
        for turn in range(rounds):
            lacking = [cell for cell in cells if self._lacks(cell, turn)]
            if not lacking:
                continue
            now = time.monotonic() - started
            if self.left() <= 0 or (turn >= self.experiment.fewest_rounds and now + now / max(1, taken) > share):
                break
            for cell in lacking:
                self._worker(cell)  # all workers run before the first is timed
            self._tell(f"length {max(cell.length for cell in cells)}: round {turn + 1} of {rounds}")
            for cell in self.experiment.visits(cells, turn):
                if self.left() > 0 and self._lacks(cell, turn):  # a cell that misses the last round lacks a value
                    self._take(cell, "seconds", self.experiment.time)
            taken += 1
            self._save(self.found)

    def _lacks(self, cell: Cell, turn: int) -> bool:
        """Return True if a cell was not timed in the round ``turn``, and can be."""
        return "seconds" not in cell.failures and len(cell.values.get("seconds", ())) <= turn

    def _take(self, cell: Cell, quantity: str, measure: Callable[[Ask, Cell], Values]) -> None:
        time_limit = getattr(self.experiment, "time_limit", math.inf)

        def ask(method: str, *arguments: Any) -> Any:
            limit = min(time_limit, self._left_or_stop())
            return self._worker(cell).ask(method, *arguments, limit=None if limit == math.inf else limit)

        try:
            self._left_or_stop()
            for name, value in measure(ask, cell).items():
                cell.values.setdefault(name, []).append(value)
        except WorkerError as error:
            over = error.kind == "time limit" and self.left() <= 0
            self._fail(cell, quantity, f"{NO_TIME}: {error}" if over else str(error))
        if seconds := cell.all("seconds"):
            self._steps[cell] = seconds[-1]

    def _fail(self, cell: Cell, quantity: str, why: str) -> None:
        """Record a failure, also for all quantities of the cell that have no value. That of a largest batch is recorded alone."""
        once = [name for name in self.experiment.once(cell) if name not in cell.values]
        timed = ["seconds"] if self.experiment.protocol else []
        for name in [quantity] if quantity == "largest_batch" else [quantity, *once, *timed]:
            cell.failures.setdefault(name, why)

    # Time

    def _left_or_stop(self) -> float:
        if (left := self.left()) <= 0:
            raise WorkerError(NO_TIME, "before the measurement started")
        return left

    def _round_seconds(self, step: float) -> float:
        """Return the approximate seconds that one cell takes in a round. ``step`` is the seconds of its step."""
        protocol = self.experiment.protocol
        return step if protocol is None else max(protocol.seconds, step) + protocol.warmup * step

    def _too_slow(self, cell: Cell) -> str | None:
        step = expected_seconds(self._steps, cell)
        needed = self.experiment.fewest_rounds * self._round_seconds(step)
        return self._no_time(step, needed) if step and needed > self.left() else None

    def _leave_out_slowest(self, cells: Sequence[Cell]) -> None:
        """Leave out the slowest measurements until the rounds of the others fit into the remaining time."""
        fewest = self.experiment.fewest_rounds
        going = sorted((c for c in cells if self._lacks(c, fewest - 1)), key=lambda cell: self._steps.get(cell, 0.0))
        while going:
            needed = fewest * sum(self._round_seconds(self._steps.get(cell, 0.0)) for cell in going)
            if needed <= self.left():
                return
            slowest = going.pop()
            self._fail(slowest, "seconds", self._no_time(self._steps.get(slowest, 0.0), needed))

    def _no_time(self, step: float, needed: float) -> str:
        return (
            f"{NO_TIME}: a step takes about {step:.3g} s, so {needed:.0f} s are needed, and {max(0.0, self.left()):.0f} s are left"
        )

    # Processes

    def _worker(self, cell: Cell) -> Worker:
        name = self.experiment.process(cell)
        if name not in self._workers:
            while self._workers and (memory := psutil.virtual_memory()).available < LEAST_AVAILABLE * memory.total:
                self._workers.popitem()[1].stop()
            bounded = getattr(self.experiment, "device", "cpu") == "cpu"
            self._workers[name] = Worker(*self.experiment.maker(cell), bounded=bounded)
        return self._workers[name]

    def _stop_workers(self, kept: Collection[str] = ()) -> None:
        for name in [name for name in self._workers if name not in kept]:
            self._workers.pop(name).stop()


def expected_seconds(steps: dict[Cell, float], cell: Cell) -> float:
    """Return the expected seconds of one step of a cell. Return 0 if the layer was not measured at a shorter length.

    The result is extrapolated from the seconds of the same layer at the two longest of the shorter lengths, by a power law with an
    exponent from 1 to 2.

    Args:
        steps: measured seconds of a step, by cell.
    """
    alike = {}
    for known, seconds in steps.items():
        if (known.label, known.kind, known.group) == (cell.label, cell.kind, cell.group) and known.length < cell.length:
            alike[known.length] = seconds / known.batch
    if not alike:
        return 0.0
    lengths = sorted(alike)[-2:]
    fitted = fit_exponent(lengths, [alike[n] for n in lengths]) if len(lengths) > 1 else 1.0
    return cell.batch * alike[lengths[-1]] * (cell.length / lengths[-1]) ** min(2.0, max(1.0, fitted))
