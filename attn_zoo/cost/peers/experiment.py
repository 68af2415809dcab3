"""Our layers against public ones on a CPU: time, memory, distance to the arithmetic floor and to full attention.

The floor is the time that a layer's matrix products would take at the rate of one large fp32 matrix product, measured in
the same rounds. Products are those of our card with the projections around it (``layer_cost``); where the card recomputes
some of them backward, no more than two for each forward one are counted, one for the gradient of either factor. Softmax,
biases and moving data are free here, so nothing in fp32 that does these products goes below the floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from attn_zoo.contract import UnknownNameError
from attn_zoo.cost.bench import Bench, MatrixProducts
from attn_zoo.cost.counted.formulas import layer_cost
from attn_zoo.cost.peers.rivals import OURS, RIVALS, YARDSTICK, Rival, builder
from attn_zoo.cost.protocol import ALLOCATORS, TimingProtocol
from attn_zoo.cost.workers import Worker, WorkerError

KINDS = ("forward", "training")

PRODUCT_SIZE = 2048
"""Rows and columns of the matrix product that gives the machine's rate."""

SLOW, LEAST_ROUNDS = 3.0, 3
"""A step that takes more seconds is in so many rounds only; it is the yardstick, or out of the race."""

SMALL = 1024
"""Length of the step by which a process is made ready for its memory to be taken, at most; half the length, if that is less."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is compared and how.

    Raises:
        ValueError: a value breaks its rule.
        UnknownNameError: no such mechanism.
    """

    mechanisms: tuple[str, ...]
    """Keys of ``RIVALS``."""
    lengths: tuple[int, ...]
    tokens: int
    """A batch holds max(1, tokens // length) sequences."""
    dim: int
    heads: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Dials other than the rival's own."""
    rounds: int = 5
    repeat_seconds: float = 0.2
    """A timing repeats its step until so many seconds are covered."""
    allocators: tuple[str, ...] = ("default",)
    seed: int = 1
    """Of the order in each round."""
    time_limit: float = 120.0
    """Seconds that one request to a process may take."""

    def __post_init__(self) -> None:
        for name in [*self.mechanisms, *self.sizes]:
            if name not in RIVALS:
                raise UnknownNameError("mechanism of experiment=peers", name, RIVALS)
        if not self.mechanisms or len(set(self.mechanisms)) < len(self.mechanisms):
            raise ValueError(f"mechanisms name each rival once, and one at least; got {list(self.mechanisms)}")
        if self.heads < 1 or self.dim < 1 or self.dim % self.heads:
            raise ValueError(f"dim must be divisible by heads, both at least 1; got dim={self.dim} and heads={self.heads}")
        if not self.lengths or len(set(self.lengths)) < len(self.lengths) or min(self.lengths) < 2:
            raise ValueError(f"lengths are different whole numbers of at least 2; got {list(self.lengths)}")
        for name in ("tokens", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if unknown := [name for name in self.allocators if name not in ALLOCATORS]:
            raise ValueError(f"allocators are {', '.join(ALLOCATORS)}; got {', '.join(unknown)}")
        if not self.allocators or self.time_limit <= 0 or self.repeat_seconds < 0:
            raise ValueError("allocators must name one, time_limit must be above 0 and repeat_seconds not below 0")
        self._check_sizes()

    def _check_sizes(self) -> None:
        for name, size in self.sizes.items():
            if not RIVALS[name].size:
                raise ValueError(f"sizes.{name}: this rival has no dial; leave it out")
            if size < 1:
                raise ValueError(f"sizes.{name} counts {RIVALS[name].dial}, so it is at least 1; got {size}")
        for name in self.mechanisms:
            if 2 * self.size(name) > min(self.lengths):
                raise ValueError(
                    f"lengths must be at least twice the {RIVALS[name].dial} of {name}, {self.size(name)}; got "
                    f"{list(self.lengths)}; choose longer ones or a smaller sizes.{name}"
                )

    def size(self, name: str) -> int:
        """The dial of a rival."""
        return self.sizes.get(name, RIVALS[name].size)

    def batch(self, name: str, length: int) -> int:
        """Sequences of a step of a rival, or of the yardstick."""
        most = RIVALS[name].largest_batch if name in RIVALS else None
        batch = max(1, self.tokens // length)
        return batch if most is None else min(most, batch)

    def protocol(self, allocator: str = "default") -> TimingProtocol:
        """How times are taken under an allocator."""
        how: dict[str, Any] = {"rounds": self.rounds, "order": "shuffled", "seed": self.seed, "seconds": self.repeat_seconds}
        return TimingProtocol.on("cpu", **how, allocator=allocator)

    def groups(self, length: int) -> dict[str, list[str]]:
        """The sides of each rival at a length, its missing peers left out; behind them the yardstick, causal or not."""
        found: dict[str, list[str]] = {}
        for name in self.mechanisms:
            rival = RIVALS[name]
            if rival.longest is None or length <= rival.longest:
                sides = [side for side, peer in rival.peers.items() if peer.missing() is None]
                found |= {name: [OURS, *sides]} if sides else {}
        causal = [RIVALS[name].causal for name in found]
        yardsticks = [side for side, wanted in (("full", not all(causal)), ("causal", any(causal))) if wanted]
        return found | ({YARDSTICK: yardsticks} if yardsticks else {})


def require_peers(mechanisms: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Versions of the installed packages that ``mechanisms`` are compared with, and why others are left out.

    Raises:
        ValueError: none of them is installed.
    """
    peers = [peer for name in mechanisms for peer in RIVALS[name].peers.values()]
    missing = list(dict.fromkeys(reason for peer in peers if (reason := peer.missing())))
    versions = {peer.package: peer.version() for peer in peers if peer.missing() is None}
    if not versions:
        raise ValueError(
            f"experiment=peers compares with public packages, and none of them is here: {'; '.join(missing)}; "
            "install them with: pip install 'attn-zoo[peers]'"
        )
    return versions, missing


def floor_flops(rival: Rival, dim: int, heads: int, size: int, length: int) -> dict[str, int]:
    """FLOPs of our layer's matrix products for one sequence by kind (see the head of this file)."""
    with torch.device("meta"):
        cost = layer_cost(rival.build(dim, heads, size, length))
    assert cost.backward_flops is not None, "every card of ours states it"
    return {"forward": cost.flops, "training": cost.flops + min(cost.backward_flops, 2 * cost.flops)}


def measure(
    setting: Setting,
    *,
    tell: Callable[[str], None],
    save: Callable[[list[dict[str, Any]]], None],
    done: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Every figure of all sides at every length under every allocator, as plain data.

    Time and memory are taken in different processes: those for memory have done nothing before.

    Args:
        tell: called with a line of progress now and then.
        save: called with the points so far, once memory is taken and after each round.
        done: points of an earlier measurement under the same setting; what they have is not measured again.
    """
    points = list(done)
    for allocator in setting.allocators:
        for length in setting.lengths:
            known = [point for point in points if (point["allocator"], point["length"]) == (allocator, length)]
            point = known[0] if known else _started(setting, allocator, length, tell)
            points += [] if known else [point]
            for _ in _rounds(setting, point, tell):
                save(points)
    return points


def _started(setting: Setting, allocator: str, length: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """A point without any round: memory, floors, and empty lists of seconds."""
    protocol, groups = setting.protocol(allocator), setting.groups(length)
    point: dict[str, Any] = {"allocator": allocator, "length": length, "protocol": protocol.digest(), "rounds": 0}
    point["batch"] = {name: setting.batch(name, length) for name in groups}
    point["flops"] = {
        name: floor_flops(RIVALS[name], setting.dim, setting.heads, setting.size(name), length) for name in groups if name in RIVALS
    }
    point["failures"] = {}
    point["seconds"] = {name: {side: {kind: [] for kind in KINDS} for side in sides} for name, sides in groups.items()}
    point["product_seconds"] = []
    point["memory"] = {name: {side: {} for side in sides} for name, sides in groups.items()}
    for name, side in _sides(groups):
        tell(f"allocator {allocator}, length {length}: memory of {name}, {side}")
        for kind in KINDS:
            try:
                point["memory"][name][side][kind] = _memory(setting, protocol, name, side, kind, length)
            except WorkerError as error:
                point["failures"][f"{name}, {side}: memory, {kind}"] = str(error)
    return point


def _memory(setting: Setting, protocol: TimingProtocol, name: str, side: str, kind: str, length: int) -> dict[str, int]:
    """Bytes above what was there before a step: of the process, and of PyTorch's allocations."""
    worker = _worker(setting, protocol, name, side)
    request, limit = (kind, setting.batch(name, length), length), setting.time_limit
    try:
        resident = worker.ask("resident_peak", *request, min(SMALL, length // 2), limit=limit)
        return {"resident": resident, "allocated": worker.ask("peak", *request, limit=limit)}
    finally:
        worker.stop()


def _rounds(setting: Setting, point: dict[str, Any], tell: Callable[[str], None]) -> Iterator[None]:
    """Take the rounds that a point lacks; in each, rivals come in a new order, and the sides of one behind each other."""
    allocator, length = point["allocator"], point["length"]
    protocol, groups = setting.protocol(allocator), {name: list(sides) for name, sides in point["seconds"].items()}
    if point["rounds"] >= protocol.rounds:
        yield  # memory alone may be new
        return
    with _workers(setting, protocol, groups) as workers:
        yield
        for turn in range(point["rounds"], protocol.rounds):
            tell(f"allocator {allocator}, length {length}: round {turn + 1} of {protocol.rounds}")
            for name in protocol.ordered([*groups, "products"], turn):
                if name == "products":
                    _product(point, workers["products", ""], setting.time_limit)
                    continue
                for side, kind in protocol.ordered([(side, kind) for side in groups[name] for kind in KINDS], turn):
                    _time(setting, point, workers[name, side], name, side, kind)
            point["rounds"] = turn + 1
            yield


def _time(setting: Setting, point: dict[str, Any], worker: Worker, name: str, side: str, kind: str) -> None:
    figures, what = point["seconds"][name][side][kind], f"{name}, {side}: {kind}"
    slow = len(figures) >= LEAST_ROUNDS and min(figures) > SLOW
    if slow or what in point["failures"] or f"{name}, {side}: memory, {kind}" in point["failures"]:
        return
    request = (kind, setting.batch(name, point["length"]), point["length"], setting.repeat_seconds)
    try:
        figures.append(worker.ask("seconds", *request, limit=setting.time_limit)[0])
    except WorkerError as error:
        point["failures"][what] = str(error)


def _product(point: dict[str, Any], worker: Worker, limit: float) -> None:
    if "matrix product" not in point["failures"]:
        try:
            point["product_seconds"].append(worker.ask("seconds", PRODUCT_SIZE, limit=limit)[0])
        except WorkerError as error:
            point["failures"]["matrix product"] = str(error)


def _sides(groups: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    return [(name, side) for name, sides in groups.items() for side in sides]


@contextmanager
def _workers(
    setting: Setting, protocol: TimingProtocol, groups: Mapping[str, Sequence[str]]
) -> Iterator[dict[tuple[str, str], Worker]]:
    workers: dict[tuple[str, str], Worker] = {}
    try:
        for name, side in _sides(groups):
            workers[name, side] = _worker(setting, protocol, name, side)
        workers["products", ""] = Worker(MatrixProducts)
        yield workers
    finally:
        for worker in workers.values():
            worker.stop()


def _worker(setting: Setting, protocol: TimingProtocol, name: str, side: str) -> Worker:
    size = setting.size(name) if name in RIVALS else 0
    build = builder(name, side, setting.dim, setting.heads, size)
    return Worker(Bench, build, setting.dim, environment=protocol.environment())
