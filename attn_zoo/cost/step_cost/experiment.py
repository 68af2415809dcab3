"""What one step of each mechanism costs here: time, throughput, memory, energy. Each point lives in processes of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from attn_zoo.cost.bench import Bench
from attn_zoo.cost.largest_batch import line_through
from attn_zoo.cost.step_cost.setting import KINDS, Setting
from attn_zoo.cost.workers import Worker, WorkerError

PROBE_TOKENS = 8192
"""Tokens of the smaller of the two batches whose peaks give the line that memory follows on a CPU; at least one sequence."""

PATIENCE = 2
"""The search for the best batch ends after so many doublings without a gain."""

Point = dict[str, Any]


def measure(
    setting: Setting,
    *,
    energy: bool,
    tell: Callable[[str], None],
    save: Callable[[list[Point]], None],
    done: Sequence[Point] = (),
) -> list[Point]:
    """Every figure of every mechanism at every length, as plain data.

    At each length: memory, then the best batch of each mechanism, then rounds that visit all timings of all mechanisms in the
    order of the protocol.

    Args:
        energy: whether this machine has a meter; each timing is then followed by an energy window.
        tell: called with a line of progress now and then.
        save: called with the points so far after each mechanism's memory and best batch, and after each round.
        done: points of an earlier measurement under the same setting and protocol, finished or not; what they hold is not
            measured again.
    """
    refusals = setting.refusals()
    earlier = {(point["label"], point["length"]): point for point in done}
    points: list[Point] = []
    for n in setting.lengths:
        cells = [_Cell(setting, label, n, earlier.get((label, n)), refusals.get((label, n))) for label in setting.subjects]
        here = points + [cell.point for cell in cells]
        try:
            for cell in cells:
                tell(f"{cell.point['label']} at {n}: memory, best batch")
                if cell.measure_memory() | cell.find_best_batches():
                    save(here)
            for turn in range(min(cell.point["rounds"] for cell in cells), setting.protocol.rounds):
                tell(f"length {n}: round {turn + 1} of {setting.protocol.rounds}")
                timings = [timing for cell in cells for timing in cell.timings()]
                for timed, kind, batch in setting.protocol.ordered(timings, turn):
                    timed.time(kind, batch, energy)
                for cell in cells:
                    cell.point["rounds"] = turn + 1
                save(here)
        finally:
            for cell in cells:
                cell.stop()
        points = here
    return points


def empty_point(setting: Setting, label: str, length: int) -> Point:
    """A point of which nothing is known yet.

    ``seconds`` and ``joules`` hold, by kind and batch, a value a round: of seconds those of each part of the step.
    """
    facts = {"label": label, "level": setting.level, "subject": asdict(setting.subjects[label]), "length": length}
    unknown: Point = {"memory": {}, "search": {}, "best_batch": {}, "seconds": {}, "joules": {}, "failures": {}, "rounds": 0}
    return {**facts, "protocol": setting.protocol.digest(), **unknown}


@dataclass
class _Cell:
    """A mechanism at one length: its process and what was found of it."""

    setting: Setting
    label: str
    length: int
    earlier: Point | None
    refusal: str | None
    point: Point = field(init=False)
    _worker: Worker | None = field(default=None, init=False)
    """For time and energy; started when it is first asked."""

    def __post_init__(self) -> None:
        self.point = self.earlier or empty_point(self.setting, self.label, self.length)
        if self.refusal is not None:
            self.failures.update({f"{what}{kind}": f"refused: {self.refusal}" for what in ("", "memory ") for kind in KINDS})

    @property
    def failures(self) -> dict[str, str]:
        found: dict[str, str] = self.point["failures"]
        return found

    def measure_memory(self) -> bool:
        """Peaks at a batch of one in a process that did nothing before, and the largest batch; whether there was any to do."""
        missing = [kind for kind in KINDS if kind not in self.point["memory"] and f"memory {kind}" not in self.failures]
        for kind in missing:
            worker = self._new_worker()
            try:
                self.point["memory"][kind] = self._memory(kind, worker)
            except WorkerError as error:
                self.failures[f"memory {kind}"] = str(error)
                if error.kind == "OOM":  # nor can it be timed
                    self.failures[kind] = str(error)
            finally:
                worker.stop()
        return bool(missing)

    def find_best_batches(self) -> bool:
        """By throughput, among powers of two; whether there was any to do."""
        missing = [kind for kind in KINDS if kind not in self.point["best_batch"] and kind not in self.failures]
        for kind in missing:
            try:
                rates, stopped = self._search(kind)
            except WorkerError as error:
                self.failures[kind] = str(error)
                continue
            self.point["search"][kind] = {"tokens_per_second": rates, "stopped": stopped}
            self.point["best_batch"][kind] = int(max(rates, key=lambda batch: rates[batch]))
        return bool(missing)

    def timings(self) -> list[tuple[_Cell, str, int]]:
        """What each round times: a batch of one, and the best batch where it is another."""
        best = self.point["best_batch"]
        return [(self, kind, batch) for kind in KINDS if kind in best for batch in sorted({1, best[kind]})]

    def time(self, kind: str, batch: int, energy: bool) -> None:
        """One timing and one energy window; a failure ends those of this kind and batch."""
        what = f"{kind} batch {batch}"
        if what in self.failures:
            return
        try:
            taken = self._ask("parts", kind, batch)
            self.point["seconds"].setdefault(kind, {}).setdefault(str(batch), []).append(list(taken))
        except WorkerError as error:
            self.failures[what] = str(error)
            return
        if energy and f"energy {what}" not in self.failures:
            try:
                self.point["joules"].setdefault(kind, {}).setdefault(str(batch), []).append(self._ask("joules", kind, batch))
            except WorkerError as error:
                self.failures[f"energy {what}"] = str(error)

    def stop(self) -> None:
        """End the process."""
        if self._worker is not None:
            self._worker.stop()

    def _memory(self, kind: str, worker: Worker) -> Point:
        setting, n, limit = self.setting, self.length, self.setting.time_limit
        resident = None
        if setting.device.type == "cpu":
            resident = worker.ask("resident_peak", kind, 1, n, limit=limit)
        peak, held = (worker.ask(what, kind, 1, n, limit=limit) for what in ("peak", "held"))
        found = {"peak": peak, "held": held, "resident": resident}
        try:
            return found | self._largest_batch(kind, worker, held + peak)
        except (WorkerError, ValueError) as error:
            self.failures[f"largest batch {kind}"] = str(error)
            return found | {"largest_batch": None, "by": None}

    def _largest_batch(self, kind: str, worker: Worker, of_one: int) -> Point:
        budget, n, limit = self.setting.memory_bytes, self.length, self.setting.time_limit
        if self.setting.device.type == "cuda":
            return {"largest_batch": worker.ask("largest_batch", kind, n, budget, limit=limit), "by": "trying"}
        if of_one > budget:
            return {"largest_batch": 0, "by": "one sequence"}
        small = max(1, PROBE_TOKENS // n)
        low, high = (
            sum(worker.ask(what, kind, batch, n, limit=limit) for what in ("held", "peak")) for batch in (small, 2 * small)
        )
        return {"largest_batch": line_through((small, 2 * small), (low, high)).largest_batch(budget), "by": "line"}

    def _search(self, kind: str) -> tuple[dict[str, float], str]:
        """Tokens a second by batch, and why no larger batch was tried."""
        largest = self.point["memory"].get(kind, {}).get("largest_batch")
        rates: dict[str, float] = {}
        batch, without_gain = 1, 0
        while True:
            try:
                seconds = sum(self._ask("parts", kind, batch))
            except WorkerError as error:
                if batch == 1:
                    raise
                return rates, error.kind
            rate = rates[str(batch)] = batch * self.length / seconds
            without_gain = 0 if rate >= max(rates.values()) else without_gain + 1
            batch *= 2
            if without_gain == PATIENCE:
                return rates, f"no gain in {PATIENCE} doublings"
            if largest is not None and batch > largest:
                return rates, "memory budget"
            if 2 * seconds > self.setting.batch_seconds:
                return rates, f"a step of more than {self.setting.batch_seconds:g} s"

    def _ask(self, method: str, kind: str, batch: int) -> Any:
        self._worker = self._worker or self._new_worker()
        return self._worker.ask(method, kind, batch, self.length, limit=self.setting.time_limit)

    def _new_worker(self) -> Worker:
        setting = self.setting
        subject = setting.subjects[self.label]
        rig = setting.rig(subject)
        what = (rig.build, 0, setting.device, setting.precision, subject.backend, rig.feed, rig.optimiser, setting.protocol)
        return Worker(Bench, *what, environment=setting.protocol.environment(), bounded=setting.device.type == "cpu")
