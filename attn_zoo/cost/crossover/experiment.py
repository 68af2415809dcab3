"""Time, memory and energy of one layer with its projections over lengths: mechanisms beside softmax, materialised and fused.

The lengths are measured from the shortest on. At each, every layer and direction first takes one weighed step, which tells its
memory and about how long it takes; then shuffled rounds visit all of them in turn. What would not finish the rounds that an
interval needs within the time that is left is stopped before it starts, the slowest first, and says so.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import psutil
import torch

from attn_zoo.cost.bench import PRECISIONS, Bench, build_layer
from attn_zoo.cost.compare import fewest_rounds
from attn_zoo.cost.crossover.setting import KINDS, Entry, Setting
from attn_zoo.cost.energy import NotMeasured, energy_meter
from attn_zoo.cost.linformer_table3.experiment import HELD_MATRICES
from attn_zoo.cost.workers import MEMORY_SHARE, Worker, WorkerError

Points = list[dict[str, Any]]


def describe_energy(device: str) -> dict[str, Any]:
    """Whether energy is measured on a device, and by what or why not."""
    meter = energy_meter(torch.device(device))
    return {"measured": False, "reason": meter.reason} if isinstance(meter, NotMeasured) else {"measured": True, "by": meter.what}


def measure(
    setting: Setting, *, tell: Callable[[str], None], save: Callable[[Points], None], done: Sequence[dict[str, Any]] = ()
) -> Points:
    """Every figure of every layer at every length, as plain data, one point a layer, length and direction.

    Args:
        tell: called with a line of progress now and then.
        save: called with the points so far after each length.
        done: points of an earlier measurement under the same setting; their lengths are not measured again.
    """
    points, ends = list(done), time.monotonic() + setting.seconds
    lengths = [n for n in setting.lengths if n not in {point["length"] for point in done}]
    energy = bool(describe_energy(setting.device)["measured"])
    with _workers(setting) as workers:
        for at, n in enumerate(lengths):
            cells = [Cell(setting, entry, kind, n, worker) for entry, worker in workers for kind in KINDS]
            tell(f"length {n}: memory")
            for cell in cells:
                cell.weigh(points, ends - time.monotonic())
            stop_slowest(cells, ends - time.monotonic())
            share = math.sqrt(n) / sum(map(math.sqrt, lengths[at:]))  # longer ones need more, but these must not starve
            _rounds(setting, cells, ends, share * (ends - time.monotonic()), energy, tell)
            points += [cell.to_dict() for cell in cells]
            save(points)
    return points


@dataclass(eq=False)
class Cell:
    """A layer in one direction at one length: what was found of it."""

    setting: Setting
    entry: Entry
    kind: str
    length: int
    worker: Worker
    step_seconds: float = 0.0
    """About how long a step takes."""
    seconds: list[float] = field(default_factory=list)
    """One figure a round, from the first on."""
    joules: list[float] = field(default_factory=list)
    bytes: int | None = None
    """Held before the step (parameters, tokens), with the most that it allocates at once."""
    failures: dict[str, str] = field(default_factory=dict)
    """By ``time``, ``memory`` and ``energy``: ``OOM``, ``time limit``, ``refused`` or ``failed``, and what happened."""

    def weigh(self, earlier: Sequence[Mapping[str, Any]], left: float) -> None:
        """Find the memory and about the time of a step, unless it cannot run or would take too long."""
        self.step_seconds = expected_seconds(earlier, self.entry.label, self.kind, self.length)
        if why := refusal(self.setting, self.entry, self.length) or self._too_much() or self._too_slow(left):
            self.failures |= {"time": why, "memory": why}
            return
        try:
            held = self._ask("held", left)
            started = time.perf_counter()
            self.bytes = held + self._ask("peak", left)
            self.step_seconds = (time.perf_counter() - started) / 2  # it takes a step to warm up and one to weigh
        except WorkerError as error:
            self.failures |= {"time": str(error), "memory": str(error)}

    def visit(self, turn: int, energy: bool, left: float) -> None:
        """Take one timing and, in as many rounds as an interval needs, one window of energy."""
        try:
            if "time" not in self.failures:
                self.seconds.append(sum(self._ask("parts", left)))
                self.step_seconds = self.seconds[-1]
        except WorkerError as error:
            self.failures["time"] = str(error)
        try:
            if energy and turn < fewest_rounds() and not {"time", "energy"} & self.failures.keys():
                self.joules.append(self._ask("joules", left))
        except WorkerError as error:
            self.failures["energy"] = str(error)

    def round_seconds(self) -> float:
        """About how long a visit takes."""
        protocol = self.setting.protocol
        return max(protocol.seconds, self.step_seconds) + protocol.warmup * self.step_seconds

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        found = {name: getattr(self, name) for name in ("length", "kind", "seconds", "joules", "bytes", "failures")}
        return {**asdict(self.entry), **found, "protocol": self.setting.protocol.digest()}

    def _ask(self, method: str, left: float) -> Any:
        return self.worker.ask(method, self.kind, 1, self.length, limit=min(self.setting.time_limit, max(1.0, left)))

    def _too_much(self) -> str | None:
        """Why materialised softmax cannot fit: so many length × length matrices a head are held at once, at least."""
        if self.entry.role != "materialised":
            return None
        numbers = HELD_MATRICES[self.kind] * self.setting.heads * self.length**2
        least, memory = numbers * PRECISIONS[self.setting.precision].itemsize, _device_memory(self.setting.device)
        return f"OOM: by arithmetic at least {least} bytes, of {memory}" if least > memory else None

    def _too_slow(self, left: float) -> str | None:
        needed = fewest_rounds() * self.round_seconds()
        return _stopped(self.step_seconds, needed, left) if needed > left else None


def refusal(setting: Setting, entry: Entry, length: int) -> str | None:
    """Why a mechanism cannot be built for a length: seen here, as an error would cost its process."""
    try:
        build_layer(entry.subject, setting.dim, setting.heads, length)
    except ValueError as error:
        return f"refused: {error}"
    return None


def expected_seconds(earlier: Sequence[Mapping[str, Any]], label: str, kind: str, length: int) -> float:
    """Seconds of a step by the last two lengths before it: they grow on as they grew, from linearly to quadratically; 0 before."""
    known = [p for p in earlier if (p["label"], p["kind"]) == (label, kind) and p["seconds"] and p["length"] < length]
    below = sorted((p["length"], statistics.median(p["seconds"])) for p in known)[-2:]
    if not below:
        return 0.0
    exponent = 1.0
    if len(below) == 2:
        (n, before), (m, last) = below
        exponent = min(2.0, max(1.0, math.log(last / before) / math.log(m / n)))
    return float(below[-1][1] * (length / below[-1][0]) ** exponent)


def stop_slowest(cells: Sequence[Cell], left: float) -> None:
    """Stop the slowest cells until the rounds that an interval needs fit into ``left`` seconds."""
    going = sorted((cell for cell in cells if "time" not in cell.failures), key=Cell.round_seconds)
    while going and (needed := fewest_rounds() * sum(cell.round_seconds() for cell in going)) > left:
        slowest = going.pop()
        slowest.failures["time"] = _stopped(slowest.step_seconds, needed, left)


def _stopped(step: float, needed: float, left: float) -> str:
    rounds = fewest_rounds()
    return f"time limit: a step takes about {step:.3g} s, so {rounds} rounds need {needed:.0f} s, of {max(0.0, left):.0f} s left"


def _rounds(setting: Setting, cells: Sequence[Cell], ends: float, share: float, energy: bool, tell: Callable[[str], None]) -> None:
    """Rounds of visits: those that an interval needs, then more for as long as ``share`` seconds hold."""
    started = time.monotonic()
    for turn in range(setting.protocol.rounds):
        now = time.monotonic()
        mean = (now - started) / max(1, turn)
        if now > ends or (turn >= fewest_rounds() and now - started + mean > share):
            break
        tell(f"length {cells[0].length}: round {turn + 1}")
        for cell in setting.protocol.ordered(cells, turn):
            if (left := ends - time.monotonic()) > 0:  # who misses the last round has one figure less
                cell.visit(turn, energy, left)


def _device_memory(device: str) -> int:
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return int(MEMORY_SHARE * psutil.virtual_memory().total)


def _start(setting: Setting, entry: Entry, worker: Worker) -> None:
    """Let a process load its libraries before any step of it is timed; why it cannot, its cells will find out."""
    shortest = next((n for n in setting.lengths if refusal(setting, entry, n) is None), None)
    if shortest is not None:
        with suppress(WorkerError):
            worker.ask("peak", "training", 1, shortest, limit=setting.time_limit)


@contextmanager
def _workers(setting: Setting) -> Iterator[list[tuple[Entry, Worker]]]:
    device = torch.device("cuda", 0) if setting.device == "cuda" else torch.device("cpu")
    how: dict[str, Any] = {"dim": setting.dim, "device": device, "precision": setting.precision, "protocol": setting.protocol}
    workers: list[Worker] = []
    try:
        for entry in setting.entries():
            build = partial(build_layer, entry.subject, setting.dim, setting.heads)
            make = partial(Bench, build, backend=entry.subject.backend, **how)
            workers.append(Worker(make, environment=setting.protocol.environment(), bounded=device.type == "cpu"))
        for entry, worker in zip(setting.entries(), workers, strict=True):
            _start(setting, entry, worker)
        yield list(zip(setting.entries(), workers, strict=True))
    finally:
        for worker in workers:
            worker.stop()
