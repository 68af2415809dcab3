"""Our Linformer layer against the public package ``linformer`` on a CPU: time, memory, and distance to the arithmetic floor.

The floor is the time that the layer's matrix products would take at the rate of one large fp32 matrix product, measured in
the same rounds. Counted are 2 FLOPs a multiply-add, with n tokens, width D and k projected keys, a sequence:

    queries          2 n D²          E X and F X      4 n k D
    keys and values  4 k D²          Q K'ᵀ and P V'   4 n k D
    output           2 n D²

which is the order that projects the length first; the other one takes 4 n D² for keys and values. Backward, each product
needs two of its size, one for the gradient of either factor (all of them have one: the tokens, too), so forward + backward
is three times forward. Softmax, biases and moving data are free here, so nothing in fp32 goes below the floor.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import nn

from attn_zoo.cost.bench import Bench, MatrixProducts, Subject, build_layer
from attn_zoo.cost.protocol import ALLOCATORS, TimingProtocol
from attn_zoo.cost.workers import Worker, WorkerError

KINDS = ("forward", "training")

SIDES = ("ours", "theirs")

PRODUCT_SIZE = 2048
"""Rows and columns of the matrix product that gives the machine's rate."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is compared and how.

    Raises:
        ValueError: a value breaks its rule.
        UnknownNameError: Linformer has no such implementation.
    """

    lengths: tuple[int, ...]
    tokens: int
    """A batch holds max(1, tokens // length) sequences."""
    dim: int
    heads: int
    projected_length: int
    implementation: str
    rounds: int
    repeat_seconds: float
    """A timing repeats its step until so many seconds are covered."""
    allocators: tuple[str, ...]
    seed: int
    """Of the order of the processes in each round."""
    time_limit: float
    """Seconds that one request to a process may take."""

    def __post_init__(self) -> None:
        if self.heads < 1 or self.dim < 1 or self.dim % self.heads:
            raise ValueError(f"dim must be divisible by heads, both at least 1; got dim={self.dim} and heads={self.heads}")
        if not self.lengths or len(set(self.lengths)) < len(self.lengths):
            raise ValueError(f"lengths are different whole numbers; got {list(self.lengths)}")
        if min(self.lengths) <= self.projected_length:
            raise ValueError(f"lengths must be above projected_length={self.projected_length}; got {list(self.lengths)}")
        for name in ("tokens", "rounds", "projected_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if unknown := [name for name in self.allocators if name not in ALLOCATORS]:
            raise ValueError(f"allocators are {', '.join(ALLOCATORS)}; got {', '.join(unknown)}")
        if not self.allocators or self.time_limit <= 0 or self.repeat_seconds < 0:
            raise ValueError("allocators must name one, time_limit must be above 0 and repeat_seconds not below 0")
        build_layer(self.subject(), self.dim, self.heads, self.projected_length + 1)

    def batch(self, length: int) -> int:
        """Sequences of a step."""
        return max(1, self.tokens // length)

    def protocol(self, allocator: str = "default") -> TimingProtocol:
        """How times are taken under an allocator."""
        how: dict[str, Any] = {"rounds": self.rounds, "order": "shuffled", "seed": self.seed, "seconds": self.repeat_seconds}
        return TimingProtocol.on("cpu", **how, allocator=allocator)

    def subject(self) -> Subject:
        """Our layer; all heads share one E and one F, as in the peer."""
        return Subject("linformer", {"projected_length": self.projected_length, "sharing": "headwise"}, self.implementation)


def require_peer() -> str:
    """Version of the installed peer.

    Raises:
        ValueError: it is not installed.
    """
    try:
        importlib.import_module("linformer").LinformerSelfAttention  # noqa: B018 (some other package may have the name)
        return version("linformer")
    except (ImportError, AttributeError, PackageNotFoundError) as error:
        raise ValueError(
            f"experiment=peers compares with the package 'linformer', which cannot be used here ({error}); "
            "install it with: pip install 'attn-zoo[peers]'"
        ) from error


def build_peer(dim: int, heads: int, projected_length: int, length: int) -> nn.Module:
    """The peer's layer with its projections, (batch, length, dim) -> same."""
    layer = importlib.import_module("linformer").LinformerSelfAttention(dim=dim, seq_len=length, k=projected_length, heads=heads)
    assert isinstance(layer, nn.Module)
    return layer


def floor_flops(kind: str, batch: int, length: int, dim: int, projected_length: int) -> int:
    """FLOPs of the layer's matrix products (see the head of this file), ``kind`` being ``forward`` or ``training``."""
    n, d, k = length, dim, projected_length
    forward = batch * (2 * n * d**2 + 4 * n * k * d + 4 * k * d**2 + 4 * n * k * d + 2 * n * d**2)
    return forward if kind == "forward" else 3 * forward


def measure(
    setting: Setting,
    *,
    tell: Callable[[str], None],
    save: Callable[[list[dict[str, Any]]], None],
    done: Sequence[dict[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Every figure of both sides at every length under every allocator, as plain data.

    Time and memory are taken in different processes: those for memory have done nothing before.

    Args:
        tell: called with a line of progress now and then.
        save: called with the points so far after each length.
        done: points of an earlier measurement under the same setting, which are not measured again.
    """
    points = list(done)
    for allocator in setting.allocators:
        for n in [n for n in setting.lengths if (allocator, n) not in {(p["allocator"], p["length"]) for p in done}]:
            protocol = setting.protocol(allocator)
            point: dict[str, Any] = {"allocator": allocator, "length": n, "batch": setting.batch(n), "failures": {}}
            point["protocol"] = protocol.digest()
            tell(f"allocator {allocator}, length {n}: memory")
            point["memory"] = _memory(setting, protocol, n, point["failures"])
            point |= _times(setting, protocol, n, point["failures"], tell)
            points.append(point)
            save(points)
    return points


def _times(
    setting: Setting, protocol: TimingProtocol, length: int, failures: dict[str, str], tell: Callable[[str], None]
) -> dict[str, Any]:
    """Seconds by side and kind, and those of the matrix product, one figure a round."""
    taken: dict[str, dict[str, list[float]]] = {side: {kind: [] for kind in KINDS} for side in SIDES}
    products: list[float] = []
    step = (setting.batch(length), length, protocol.seconds)
    requests: list[tuple[str, tuple[Any, ...], list[float]]] = [
        (side, (kind, *step), taken[side][kind]) for side in SIDES for kind in KINDS
    ]
    requests.append(("products", (PRODUCT_SIZE,), products))
    with _workers(setting, protocol) as workers:
        for turn in range(protocol.rounds):
            tell(f"allocator {protocol.allocator}, length {length}: round {turn + 1} of {protocol.rounds}")
            for name, request, figures in protocol.ordered(requests, turn):
                what = f"{name} {request[0]}"
                if what not in failures:
                    try:
                        figures.append(workers[name].ask("seconds", *request, limit=setting.time_limit)[0])
                    except WorkerError as error:
                        failures[what] = str(error)
    return {"seconds": taken, "product_seconds": products}


def _memory(
    setting: Setting, protocol: TimingProtocol, length: int, failures: dict[str, str]
) -> dict[str, dict[str, dict[str, int]]]:
    """Bytes above what was there before a step, by side and kind: of the process, and of PyTorch's allocations."""
    small = setting.projected_length + 1
    found: dict[str, dict[str, dict[str, int]]] = {side: {} for side in SIDES}
    workers = {(side, kind): _worker(setting, protocol, side) for side in SIDES for kind in KINDS}
    try:
        for (side, kind), worker in workers.items():
            request = (kind, setting.batch(length), length)
            try:
                resident = worker.ask("resident_peak", *request, small, limit=setting.time_limit)
                found[side][kind] = {"resident": resident, "allocated": worker.ask("peak", *request, limit=setting.time_limit)}
            except WorkerError as error:
                failures[f"{side} memory {kind}"] = str(error)
            worker.stop()  # what it holds is not needed any more
    finally:
        for worker in workers.values():
            worker.stop()
    return found


@contextmanager
def _workers(setting: Setting, protocol: TimingProtocol) -> Iterator[dict[str, Worker]]:
    workers = {side: _worker(setting, protocol, side) for side in SIDES} | {"products": Worker(MatrixProducts)}
    try:
        yield workers
    finally:
        for worker in workers.values():
            worker.stop()


def _worker(setting: Setting, protocol: TimingProtocol, side: str) -> Worker:
    if side == "ours":
        build = partial(build_layer, setting.subject(), setting.dim, setting.heads)
    else:
        build = partial(build_peer, setting.dim, setting.heads, setting.projected_length)
    return Worker(Bench, build, setting.dim, environment=protocol.environment())
