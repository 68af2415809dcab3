"""Time of the GPU alone, on a cold cache, and what this machine reaches at best.

Before each step a large buffer is filled, which empties the second-level cache and keeps the GPU busy for about a
millisecond. Python has the step's kernels in the queue by then, so that what lies between two events is their time and not
that of launching them. Where steps follow each other without the buffer, launching counts: that is the time in a loop.
"""

from __future__ import annotations

import itertools
import math
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attn_zoo.cost.linformer_kernels.attempts import attempt
from attn_zoo.cost.linformer_kernels.floors import EXPONENTIALS_A_CLOCK, STATED_HERTZ
from attn_zoo.cost.timing import quartiles, seconds_of

Step = Callable[[], object]

FILL_BYTES = 4 * 2**30

MOST_FILLS = 10

BUSY = 900
"""Products that are in the queue, for more than a second, while the driver is asked for the clock."""

LEAST_REPEATS, MOST_REPEATS = 5, 100


class Clock:
    """A timer of steps on a CUDA device, with its buffer."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        most = torch.cuda.get_device_properties(device).total_memory // 8
        self._buffer = torch.empty(min(FILL_BYTES, most), dtype=torch.uint8, device=device)
        self._buffer.zero_()
        self._fill_seconds = seconds_of(self._buffer.zero_, device, 0.01)

    def time(self, steps: Sequence[Step], rounds: int, at_least: float) -> dict[str, Any]:
        """Quartiles over all repetitions, the median of each round, the time in a loop, and that of launching.

        Args:
            steps: the same work on different inputs, which take turns.
            at_least: seconds that a round covers, fills left out.
        """
        for step in steps:
            step()
        launch = self._launch_seconds(steps)
        fills = min(MOST_FILLS, max(1, math.ceil(1.5 * launch / self._fill_seconds)))
        first = statistics.median(self._repeat(steps, 3, fills))
        repeats = min(MOST_REPEATS, max(LEAST_REPEATS, round(at_least / max(first, 1e-9))))
        by_round = [self._repeat(steps, repeats, fills) for _ in range(rounds)]
        turns = itertools.cycle(steps)
        return {
            "seconds": quartiles([seconds for taken in by_round for seconds in taken]),
            "rounds": [statistics.median(taken) for taken in by_round],
            "repeats": rounds * repeats,
            "loop_seconds": seconds_of(lambda: next(turns)(), self.device, at_least),
            "launch_seconds": launch,
        }

    def _launch_seconds(self, steps: Sequence[Step]) -> float:
        """How long Python takes to put a step into the queue while the GPU is busy."""
        taken = []
        for step in steps:
            torch.cuda.synchronize(self.device)
            for _ in range(2):
                self._buffer.zero_()
            started = time.perf_counter()
            step()
            taken.append(time.perf_counter() - started)
        torch.cuda.synchronize(self.device)
        return statistics.median(taken)

    def _repeat(self, steps: Sequence[Step], repeats: int, fills: int) -> list[float]:
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
        for at, (start, end) in enumerate(marks):
            for _ in range(fills):
                self._buffer.zero_()
            start.record()
            steps[at % len(steps)]()
            end.record()
        torch.cuda.synchronize(self.device)
        return [start.elapsed_time(end) * 1e-3 for start, end in marks]


class Machine:
    """The rates of the device; it lives in a worker's process."""

    def ceilings(self) -> dict[str, Any]:
        """Rates a second of copying and of square matrix products on random numbers, and facts about the device.

        Exponentials are not measured: multiprocessors × ``EXPONENTIALS_A_CLOCK`` × the clock during the products.
        """
        device = torch.device("cuda", 0)
        return attempt(lambda: _ceilings(device), device)


def _ceilings(device: torch.device, size: int = 8192, copied: int = 4 * 10**9) -> dict[str, Any]:
    facts = torch.cuda.get_device_properties(device)
    source = torch.randint(-(2**62), 2**62, (copied // 8,), device=device)
    target = torch.empty_like(source)
    copy = _best(lambda: target.copy_(source), device)
    del source, target
    product = _product(size, torch.bfloat16)
    half = _best(product, device)
    for _ in range(BUSY):
        product()
    smi = _smi()
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    tf32 = _best(_product(size, torch.float32), device)
    torch.backends.cuda.matmul.fp32_precision = before
    hertz = _hertz(smi)
    return {
        "bytes": 2 * copied / copy,
        "half_flops": 2 * size**3 / half,
        "tf32_flops": 2 * size**3 / tf32,
        "exponentials": facts.multi_processor_count * EXPONENTIALS_A_CLOCK * (hertz or STATED_HERTZ),
        "clock_measured": hertz is not None,
        "processors": facts.multi_processor_count,
        "memory_bytes": facts.total_memory,
        "smi": smi,
        "triton": _triton_version(),
    }


def _best(step: Callable[[], Tensor], device: torch.device) -> float:
    """Median of ten timings in a loop."""
    return statistics.median(seconds_of(step, device, 0.02) for _ in range(10))


def _product(size: int, dtype: torch.dtype) -> Callable[[], Tensor]:
    left, right = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def _hertz(smi: dict[str, str]) -> float | None:
    """The clock, but not that of a device at rest, with which floors would be too easy."""
    megahertz = smi.get("clocks.sm", "").partition(" ")[0]
    return 1e6 * float(megahertz) if megahertz.isdigit() and 1e6 * float(megahertz) > STATED_HERTZ / 2 else None


_ASKED = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu")


def _smi() -> dict[str, str]:
    """What the driver says of the device at this moment; nothing where it cannot be asked."""
    if (program := shutil.which("nvidia-smi")) is None:
        return {}
    words = [program, f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(_ASKED, (value.strip() for value in done.stdout.strip().split(",")), strict=False))


def _triton_version() -> str | None:
    try:
        import triton
    except ImportError:
        return None
    return str(triton.__version__)
