"""Times of every mechanism beside PyTorch's fused softmax on one device, interleaved, within the time that there is."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_zoo.contract import Geometry, UnsupportedError, choose_implementation, plain_options
from attn_zoo.cost.bench import PRECISIONS, Bench, Subject
from attn_zoo.cost.levels import Sizes, rig_for
from attn_zoo.cost.protocol import TimingProtocol
from attn_zoo.cost.workers import Worker, WorkerError
from attn_zoo.registry import attention_options, card

Point = dict[str, Any]
SOFTMAX = Subject("softmax", {}, "sdpa")
KINDS = ("forward", "training")


@dataclass(frozen=True, slots=True)
class Grid:
    """Mechanisms alone and sizes to time them at, without causality and padding, at default options.

    Raises:
        ValueError: a value breaks its rule.
    """

    device: str
    attentions: tuple[str, ...]
    lengths: tuple[int, ...]
    tokens: int
    """Tokens of a step: a batch holds max(1, tokens // length) sequences."""
    heads: int = 8
    head_dim: int = 64
    precision: str = "bf16"
    rounds: int = 3
    """Rounds, each a timing of softmax and one of the mechanism."""
    repeat_seconds: float = 0.02
    """A timing repeats its step until so many seconds are covered."""
    limit: float = 60.0
    """Seconds that one mechanism may take at one length."""

    def __post_init__(self) -> None:
        for name in ("lengths", "attentions"):
            if not getattr(self, name):
                raise ValueError(f"zoo_times.{name} names what is timed, so it is not empty")
        for name in ("tokens", "heads", "head_dim", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"zoo_times.{name} counts something, so it is at least 1; got {getattr(self, name)}")

    def cells(self) -> list[tuple[int, str]]:
        """Lengths and mechanisms, all mechanisms of the shortest length first."""
        return [(length, name) for length in self.lengths for name in self.attentions]


def measure(grid: Grid, save: Callable[[list[Point]], None], done: Sequence[Point], seconds: float) -> list[Point]:
    """Time what ``done`` does not hold yet, until ``seconds`` are over.

    Returns:
        Points, one a mechanism and length: what ``auto`` took, seconds of a step, those of fused softmax in the same rounds, and
        the quotient of the two with its lowest and highest value over rounds; or the failure.
    """
    deadline, points = time.monotonic() + seconds, list(done)
    had = {(point["length"], point["attention"]) for point in points}
    worker = Worker(_Timer, grid, bounded=grid.device == "cpu")
    try:
        for length, name in grid.cells():
            if (length, name) in had:
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                break
            point: Point = {"attention": name, "length": length, "batch": max(1, grid.tokens // length)}
            try:
                point |= worker.ask("point", name, length, limit=min(grid.limit, left))
            except WorkerError as error:
                if time.monotonic() >= deadline:  # the end of the measurement, and no failure of the mechanism
                    break
                point["failure"] = str(error)
            points.append(point)
            save(points)
    finally:
        worker.stop()
    return points


class _Timer:
    """Times a mechanism and softmax in turn; it lives in a worker's process."""

    def __init__(self, grid: Grid) -> None:
        self.grid, self.device = grid, torch.device(grid.device)

    def point(self, name: str, length: int) -> Point:
        """Facts of one mechanism at one length."""
        grid, entry = self.grid, card(name)
        geometry = Geometry(grid.heads, grid.head_dim, length, length)
        try:
            options = attention_options(entry, geometry, {})
            taken = choose_implementation(entry, geometry, options, self.device, PRECISIONS[grid.precision])
            own = self._bench(Subject(name, {}, taken))
            found: Point = {"implementation": taken, "options": plain_options(options)}
            for kind in KINDS:
                found[kind] = self._beside_softmax(own, kind, length)
        except UnsupportedError as refusal:
            return {"refused": str(refusal)}
        return found

    def _beside_softmax(self, own: Bench, kind: str, length: int) -> dict[str, float]:
        batch = max(1, self.grid.tokens // length)
        softmax = self._bench(SOFTMAX)
        pairs = [
            [bench.seconds(kind, batch, length, self.grid.repeat_seconds)[0] for bench in (softmax, own)]
            for _ in range(self.grid.rounds)
        ]
        quotients = [mine / theirs for theirs, mine in pairs]
        return {
            "seconds": statistics.median(mine for _, mine in pairs),
            "softmax_seconds": statistics.median(theirs for theirs, _ in pairs),
            "quotient": statistics.median(quotients),
            "lowest": min(quotients),
            "highest": max(quotients),
        }

    def _bench(self, subject: Subject) -> Bench:
        sizes = Sizes(self.grid.heads * self.grid.head_dim, self.grid.heads, 1, 1.0)
        rig = rig_for("mechanism", subject, sizes)
        protocol = TimingProtocol.on(self.grid.device)
        return Bench(rig.build, 0, self.device, self.grid.precision, None, rig.feed, rig.optimiser, protocol)


def times_table(points: Sequence[Point]) -> str:
    """Quotients of a training step beside fused softmax, a row a mechanism and a column a length."""
    from tabulate import tabulate

    lengths = sorted({point["length"] for point in points})
    rows = []
    for name in dict.fromkeys(point["attention"] for point in points):
        mine = {point["length"]: point for point in points if point["attention"] == name}
        taken = next((point["implementation"] for point in mine.values() if "implementation" in point), "-")
        rows.append([name, taken, *(_cell(mine.get(length)) for length in lengths)])
    return tabulate(rows, ["attention", "auto took", *(f"{length:,}" for length in lengths)], "github", disable_numparse=True)


def _cell(point: Point | None) -> str:
    if point is None:
        return "-"
    if "training" not in point:
        return "refused" if "refused" in point else str(point["failure"]).partition(":")[0]
    return f"{point['training']['quotient']:.2f}"
