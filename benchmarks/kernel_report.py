"""Shortest possible times on this machine, targets, and the Markdown tables of a measurement.

A stage of a computation reads its inputs once, writes its outputs once, and does the products and exponentials of its equation. It
takes at least

    max(FLOPs / matmul rate, bytes / copy rate, exponentials / exponential rate)

and the stages of a step take the sum. With T tokens in B sequences of N tokens, width D, H heads, r projected keys, and s bytes per
number, the counts are:

    stage                          FLOPs      bytes                                exponentials
    core, forward                  4 T r D    s (2 T D + 2 B r D)                  T H r
    core, backward                 10 T r D   s (3 T D + 2 B r D) + 4 · 2 B r D    T H r
    projection, forward            2 T r D    s (T D + N r + B r D)
    projection, backward           4 T r D    s (3 T D + 2 N r + 2 B r D)
    compressed keys and values     4 B r D²   s (4 B r D + 2 D²)
    queries; output, each          2 T D²     s (2 T D + D²)

The backward pass of the core writes the gradients of keys and values in float32, as parts that are added later. The backward pass
of the projection adds to a gradient of the tokens that the queries have written before. Matrix products of the layer count twice in
the backward pass. Linformer's matrices E and F are stacked, so the layer's projection has 2 r rows. A product in float32 is three
products in tf32, each at half the rate of bf16.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kernel_checks import Problem
from tabulate import tabulate

from attn_zoo.bench.bench import BACKENDS, PRECISIONS
from attn_zoo.bench.compare import unstable

EXPONENTIALS_A_CLOCK = 16
"""Number of exponentials that one multiprocessor of compute capability 9.0 computes per clock cycle."""
STATED = {"flops": 790e12, "bytes": 4.3e12, "exponentials": 132 * EXPONENTIALS_A_CLOCK * 1.83e9}
"""FLOPs, bytes and exponentials per second of an H200. They are used if the rates of the machine could not be measured."""

SHARE_OF_FLOOR: Mapping[tuple[str, str, int | None], float] = {
    ("core", "forward", 128): 0.7,
    ("core", "forward", 256): 0.55,
    ("core", "backward", 128): 0.5,
    ("core", "backward", 256): 0.45,
    ("projection", "forward", None): 0.6,
}
"""Smallest wanted value of (shortest possible time / measured time), by part, kind of step and number of rows. None stands for any
number of rows."""
SAME_AT_ALL_LENGTHS = 1 / 1.15
"""Smallest wanted value of (time at length 4,096 / time at length 65,536), for the same total number of tokens."""
FASTER_THAN_SDPA = {512: 1.4, 4096: 5.5, 65536: 70.0}
"""Smallest wanted value of (forward time of the fastest softmax layer / forward time of Linformer with 128 projected keys), by
length."""
LESS_MEMORY_THAN_SDPA = 1.4
"""Smallest wanted value of (peak bytes of training a softmax layer / peak bytes of training Linformer with 256 projected keys),
from length 8,192 on."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Step that is timed: the ``forward`` pass, the ``backward`` pass alone, or ``training`` (both passes of a layer)."""

    problem: Problem
    kind: str
    by: str
    """Implementation of the step: ``triton`` (our kernels), ``matmul`` (for a projection), ``sdpa`` (a layer of Linformer over
    PyTorch's attention), or one of ``BACKENDS`` (PyTorch's attention for a core, softmax attention for a layer)."""

    def __str__(self) -> str:
        return f"{self.problem} {self.kind} by {self.by}"


def floor_seconds(p: Problem, kind: str, rates: Mapping[str, float]) -> float:
    """Return the shortest possible time of a step of our kernels on a machine, in seconds.

    Args:
        p: problem that the step solves.
        kind: ``forward``, ``backward`` or ``training``.
        rates: ``flops``, ``bytes`` and ``exponentials`` that the machine does per second.
    """
    s, dim, tokens = PRECISIONS[p.precision].itemsize, p.dim, p.batch * p.length
    full, compressed, matrix, forward = tokens * dim, p.batch * p.rows * dim, p.length * p.rows, kind == "forward"
    products = rates["flops"] / (6 if p.precision == "fp32" else 1)

    def stage(flops: float, moved: float, exponentials: float = 0.0) -> float:
        return max(flops / products, moved / rates["bytes"], exponentials / rates["exponentials"])

    if p.part == "core" and forward:
        return stage(4 * full * p.rows, s * (2 * full + 2 * compressed), tokens * p.heads * p.rows)
    if p.part == "core":
        return stage(10 * full * p.rows, s * (3 * full + 2 * compressed) + 8 * compressed, tokens * p.heads * p.rows)
    if p.part == "projection" and forward:
        return stage(2 * full * p.rows, s * (full + matrix + compressed))
    if p.part == "projection":
        return stage(4 * full * p.rows, s * (3 * full + 2 * matrix + 2 * compressed))
    kernels = replace(p, part="core"), replace(p, part="projection", rows=2 * p.rows)
    linear = 2 * stage(2 * tokens * dim**2, s * (2 * full + dim**2))
    linear += stage(4 * p.batch * p.rows * dim**2, s * (4 * compressed + 2 * dim**2))
    once, back = (sum(floor_seconds(kernel, way, rates) for kernel in kernels) for way in ("forward", "backward"))
    return linear + once if forward else 3 * linear + once + back


class Report:
    """Report on one measurement of the kernels. Converted to a string, it is a text in Markdown.

    Args:
        written: content of the measurement's file.
        problems: problems that are checked.
        cells: steps that are timed.
    """

    def __init__(self, written: Mapping[str, Any], problems: Iterable[Problem], cells: Iterable[Cell]) -> None:
        self.written, self.points = written, written["points"]
        self.cells = [cell for cell in cells if cell.by == "triton"]
        self.checks = {p: self.points.get(f"check {p}", {"failure": "not measured"}) for p in problems}
        rates = self.points.get("rates", {"failure": "not measured"})
        self.rates: Mapping[str, float] = STATED if "failure" in rates else rates

    def __str__(self) -> str:
        targets = list(self.targets())
        reached = sum(row["verdict"] == "reached" for row in targets)
        parts = [
            "**Not complete: the measurement was cut short.**" * (not self.written["complete"]),
            _table(map(self._result, self.checks)),
            _table(map(self._time, self.cells)),
            _table(targets),
            "\n".join(f"- {key}: {point['failure']}" for key, point in self.points.items() if "failure" in point),
            self._protocol(),
            f"**Targets: {reached} of {len(targets)} reached.**" * bool(targets),
        ]
        return "\n\n".join(filter(None, parts))

    def figure(self, cell: Cell, name: str = "seconds") -> float:
        """Return the median seconds of a step, or its ``peak_bytes``. If it was not measured, return NaN.

        Args:
            name: ``seconds`` or ``peak_bytes``.
        """
        point = self.points.get(f"time {cell}", {})
        return float(point["seconds"][1] if name == "seconds" else point[name]) if name in point else math.nan

    def floor(self, cell: Cell) -> float:
        """Return the shortest possible time of a step of our kernels, in seconds."""
        return floor_seconds(cell.problem, cell.kind, self.rates)

    def standing(self, p: Problem) -> str:
        """Return the outcome of a check: ``right``, ``wrong``, or a word for the failure if it did not finish."""
        check = self.checks[p]
        return check["failure"].partition(":")[0] if "failure" in check else "right" if check["right"] else "wrong"

    def other(self, cell: Cell, name: str = "seconds") -> Cell:
        """Return the step of PyTorch's own operators that solves the same problem in the least time or with the least memory.

        For a layer, it is softmax attention with one of PyTorch's fused back ends.

        Args:
            name: ``seconds`` for the least time, ``peak_bytes`` for the least memory.
        """
        p = replace(cell.problem, rows=0) if cell.problem.part == "layer" else cell.problem
        cells = [Cell(p, cell.kind, by) for by in (["matmul"] if p.part == "projection" else BACKENDS)]
        return min(cells, key=lambda cell: math.inf if math.isnan(value := self.figure(cell, name)) else value)

    def targets(self) -> Iterator[dict[str, str]]:
        """Yield one table row per target of speed or memory that our kernels should reach: the measured ratio, the least ratio
        wanted, and the verdict.

        The verdict is ``reached``, ``missed`` or the reason why there is none.
        """
        for cell in self.cells:
            p, seconds = cell.problem, self.figure(cell)
            share = SHARE_OF_FLOOR.get((p.part, cell.kind, p.rows), SHARE_OF_FLOOR.get((p.part, cell.kind, None)))
            if share is not None and p.precision == "bf16":
                yield self._target(cell, "floor / time", self.floor(cell) / seconds, share)
                if p.length == 65536:
                    base = replace(cell, problem=replace(p, length=4096, batch=p.batch * 16))
                    yield self._target(cell, "time at 4096 / time", self.figure(base) / seconds, SAME_AT_ALL_LENGTHS)
            if (p.part, cell.kind, p.rows) == ("layer", "forward", 128) and p.length in FASTER_THAN_SDPA:
                yield self._target(cell, "softmax / ours", self.figure(self.other(cell)) / seconds, FASTER_THAN_SDPA[p.length])
            if (p.part, cell.kind, p.rows) == ("layer", "training", 256) and p.length >= 8192:
                yield self._target(cell, "bytes, softmax / ours", self._bytes_ratio(cell), LESS_MEMORY_THAN_SDPA)

    def _target(self, cell: Cell, what: str, value: float, least: float) -> dict[str, str]:
        p, verdict = cell.problem, self.standing(cell.problem)
        if verdict == "right":
            verdict = "no figure" if math.isnan(value) else "reached" if value >= least else "missed"
        title = f"{p.part} {cell.kind} r={p.rows} n={p.length}: {what}"
        return {"target": title, "figure": _shown(value), "at least": f"{least:.2f}", "verdict": verdict}

    def _bytes_ratio(self, cell: Cell) -> float:
        return self.figure(self.other(cell, "peak_bytes"), "peak_bytes") / self.figure(cell, "peak_bytes")

    def _result(self, p: Problem) -> dict[str, str]:
        results = self.checks[p].get("results", {"-": (None, 1.0)})
        pairs = {name: (math.inf if error is None else error, bound) for name, (error, bound) in results.items()}
        worst = max(pairs, key=lambda name: pairs[name][0] / pairs[name][1])
        error, bound = pairs[worst]
        return {
            "result": str(p),
            "worst": worst,
            "error": "NaN" if math.isinf(error) else f"{error:.1e}",
            "bound": f"{bound:.1e}",
            "same twice": {True: "yes", False: "no", None: "-"}[self.checks[p].get("same")],
            "verdict": self.standing(p),
        }

    def _time(self, cell: Cell) -> dict[str, str]:
        p, seconds, other, floor = cell.problem, self.figure(cell), self.other(cell), self.floor(cell)
        return {
            "step": f"{p.part} {cell.kind}",
            "type": p.precision,
            "r": str(p.rows),
            "n": str(p.length),
            "results": self.standing(p),
            "time (µs)": self._microseconds(cell),
            "floor": f"{1e6 * floor:.1f}",
            "floor / time": _shown(floor / seconds),
            "PyTorch (µs)": f"{self._microseconds(other)} ({other.by})",
            "PyTorch / ours": _shown(self.figure(other) / seconds),
            "Linformer by SDPA (µs)": self._microseconds(replace(cell, by="sdpa")) if p.part == "layer" else "-",
            "bytes, PyTorch / ours": _shown(self._bytes_ratio(cell)),
        }

    def _microseconds(self, cell: Cell) -> str:
        point = self.points.get(f"time {cell}", {"failure": "not measured"})
        if "failure" in point:
            return str(point["failure"]).partition(":")[0]
        low, middle, high = (1e6 * seconds for seconds in point["seconds"])
        marks = " unstable" * unstable((low, middle, high)) + " launch" * (1e6 * point["launch_seconds"] > middle)
        return f"{middle:.1f} ± {(high - low) / 2:.1f}{marks}"

    def _protocol(self) -> str:
        wrong = sum(not check.get("right", True) for check in self.checks.values())
        said = f"Results: {len(self.checks)} cases, {wrong} wrong; an error is relative to float64, in norm."
        if not self.cells:
            return f"{said} In Triton's interpreter on a CPU: no times, and no bf16, which it cannot compute."
        machine, rates = self.written["environment"], self.rates
        return (
            f"{said} Times by triton.testing.do_bench on a cold cache, median ± half the interquartile range; unstable: that range "
            "exceeds a fifth of the median; launch: the host takes longer to launch the step than the device to run it. "
            f"Rates{' of an H200, as its own are missing' * (rates is STATED)}: copy {rates['bytes'] / 1e12:.2f} TB/s, "
            f"bf16 product {rates['flops'] / 1e12:.0f} TFLOP/s, exponentials {rates['exponentials'] / 1e12:.2f} T/s by formula. "
            f"Measured on {machine['gpu']}, torch {machine['torch']}, CUDA {machine['cuda']}."
        )


def _shown(ratio: float) -> str:
    return "-" if math.isnan(ratio) else f"{ratio:.2f}"


def _table(rows: Iterable[Mapping[str, str]]) -> str:
    return tabulate(list(rows), "keys", tablefmt="github", disable_numparse=True)
