"""Table 3 of the Linformer paper on this machine: time and memory saved against softmax attention, materialised and fused.

What is measured is one attention layer with its projections, where the paper measured its whole model: no feed-forward
part dilutes the quotients. Each layer at each length lives in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import psutil
import torch

from attn_zoo.cost.bench import PRECISIONS, Bench, build_layer
from attn_zoo.cost.largest_batch import line_through
from attn_zoo.cost.linformer_table3.setting import Entry, Setting, entries
from attn_zoo.cost.protocol import TimingProtocol
from attn_zoo.cost.workers import MEMORY_SHARE, Worker, WorkerError

KINDS = ("forward", "training")

HELD_MATRICES = {"forward": 2, "training": 3}
"""Length × length matrices a head that materialised softmax holds at once, at least: scores and weights; in the backward
pass the weights, their gradient and that of the scores."""


def least_bytes(setting: Setting, kind: str, batch: int, length: int) -> int:
    """What materialised softmax needs at least: ``HELD_MATRICES`` · batch · heads · length² · bytes of a number."""
    return HELD_MATRICES[kind] * batch * setting.heads * length**2 * PRECISIONS[setting.precision].itemsize


def measure(
    setting: Setting,
    *,
    tell: Callable[[str], None],
    save: Callable[[list[dict[str, Any]]], None],
    done: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Every figure of every layer at every length, as plain data.

    Args:
        tell: called with a line of progress now and then.
        save: called with the points so far after each length.
        done: points of an earlier measurement under the same setting; their lengths are not measured again.
    """
    points, protocol = list(done), setting.protocol()
    for n in [n for n in setting.lengths if n not in {point["length"] for point in done}]:
        cells = [_Cell(setting, protocol, entry, n) for entry in entries(setting, n)]
        try:
            tell(f"length {n}: memory")
            for cell in cells:
                cell.measure_memory()
            for turn in range(protocol.rounds):
                tell(f"length {n}: round {turn + 1} of {protocol.rounds}")
                for cell in protocol.ordered(cells, turn):
                    cell.measure_time()
        finally:
            for cell in cells:
                cell.worker.stop()
        points += [cell.to_dict() for cell in cells]
        save(points)
    return points


@dataclass
class _Cell:
    """A layer at one length: its process and what was found of it."""

    setting: Setting
    protocol: TimingProtocol
    entry: Entry
    length: int
    worker: Worker = field(init=False)
    batch: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"forward": [], "training": [], "backward": []})
    memory: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        subject, setting = self.entry.subject, self.setting
        build = partial(build_layer, subject, setting.dim, setting.heads)
        device = torch.device("cuda", 0) if setting.device == "cuda" else torch.device("cpu")
        what = (build, setting.dim, device, setting.precision, subject.backend, None, False, self.protocol)
        self.worker = Worker(Bench, *what, bounded=device.type == "cpu")
        self.batch = dict.fromkeys(KINDS, setting.batch(self.length))

    def measure_memory(self) -> None:
        for kind in KINDS:
            try:
                self.memory[kind] = self._largest_batch(kind)
            except WorkerError as error:
                self.failures[f"memory {kind}"] = str(error)

    def measure_time(self) -> None:
        for kind in KINDS:
            if kind not in self.failures:
                try:
                    whole, half = self._seconds(kind)
                except WorkerError as error:
                    self.failures[kind] = str(error)
                    continue
                self.seconds[kind].append(whole)
                if half is not None:
                    self.seconds["backward"].append(half)

    def to_dict(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "protocol": self.protocol.digest(),
            **asdict(self.entry),
            "batch": self.batch,
            "seconds": self.seconds,
            "memory": self.memory,
            "failures": self.failures,
        }

    def _seconds(self, kind: str) -> tuple[float, float | None]:
        """Time one step, at half the batch as often as needed to fit."""
        while True:
            batch = self.batch[kind]
            least, memory = self._least_bytes(kind, batch), _device_memory(self.setting.device)
            try:
                if least > memory:
                    raise WorkerError("OOM", f"by arithmetic: at least {least} bytes, of {memory}")
                request = (kind, batch, self.length, self.protocol.seconds)
                answer: tuple[float, float | None] = self.worker.ask("seconds", *request, limit=self.setting.time_limit)
                return answer
            except WorkerError as error:
                if error.kind != "OOM" or batch == 1 or self.seconds[kind]:
                    raise
                self.batch[kind] = batch // 2

    def _largest_batch(self, kind: str) -> dict[str, Any]:
        budget, limit = self.setting.memory_bytes, self.setting.time_limit
        if self._least_bytes(kind, 1) > budget:
            return {"largest_batch": 0, "by": "arithmetic", "least_bytes": self._least_bytes(kind, 1)}
        if self.setting.device == "cuda":
            found = self.worker.ask("largest_batch", kind, self.length, budget, limit=limit)
            return {"largest_batch": found, "by": "trying"}
        batches = (self.setting.batch(self.length), 2 * self.setting.batch(self.length))
        held = [self.worker.ask("held", kind, batch, self.length, limit=limit) for batch in batches]
        peaks = [self.worker.ask("peak", kind, batch, self.length, limit=limit) for batch in batches]
        line = line_through(batches, (held[0] + peaks[0], held[1] + peaks[1]))
        return {"largest_batch": line.largest_batch(budget), "by": "line", "batches": batches, "held": held, "peaks": peaks}

    def _least_bytes(self, kind: str, batch: int) -> int:
        return least_bytes(self.setting, kind, batch, self.length) if self.entry.role == "materialised" else 0


def _device_memory(device: str) -> int:
    if device == "cuda":
        return torch.cuda.get_device_properties(0).total_memory
    return int(MEMORY_SHARE * psutil.virtual_memory().total)
