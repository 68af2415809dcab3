"""Check and timing of Linformer's Triton kernels on a GPU.

Results are checked against float64. Times are shown beside the shortest possible times on this machine and beside the times
of PyTorch's kernels.

    python benchmarks/linformer_kernels.py OUT.json                                           # a CUDA device
    TRITON_INTERPRET=1 python benchmarks/linformer_kernels.py OUT.json --device interpreter   # results only, on a CPU

Each number is saved in OUT.json at once. If the program was stopped, the same command continues. It prints tables at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from kernel_checks import Problem, build, check
from kernel_report import EXPONENTIALS_A_CLOCK, Cell, Report
from torch import nn
from torch.nn.attention import sdpa_kernel

from attn_zoo.bench.bench import BACKENDS
from attn_zoo.bench.workers import out_of_memory
from attn_zoo.contract import unavailable
from attn_zoo.count import peak_bytes
from attn_zoo.kernels import linformer
from attn_zoo.records import describe_environment

Point = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """Sizes of a measurement of the kernels. A batch has ``tokens`` / length sequences."""

    device: str
    lengths: tuple[int, ...]
    projected_lengths: tuple[int, ...]
    dim: int
    heads: int
    tokens: int
    precision: str
    spot_precisions: tuple[str, ...]
    """Further precisions, in which kernels but no layers are measured, at the longest of ``lengths`` up to 4,096."""

    def problems(self) -> list[Problem]:
        """Return the computations of our kernels that are checked and timed.

        Projections are measured with one matrix (E), and with two stacked matrices (E and F).
        """
        spot = max(n for n in self.lengths if n <= 4096)
        stacked = sorted({rows for r in self.projected_lengths for rows in (r, 2 * r)})
        sizes = {"core": self.projected_lengths, "projection": stacked, "layer": self.projected_lengths}
        grid = [(self.precision, n) for n in self.lengths] + [(precision, spot) for precision in self.spot_precisions]
        return [
            Problem(part, precision, self.tokens // n, n, r, self.heads, self.dim)
            for part in sizes
            for precision, n in grid
            for r in sizes[part]
            if part != "layer" or precision == self.precision
        ]

    def cells(self) -> list[Cell]:
        """Return the steps that are timed, including those of PyTorch's own operators."""
        found = []
        for p in self.problems():
            fused = ["efficient"] if p.precision == "fp32" else list(BACKENDS)  # the others take 16 bits only
            by = {"core": ["triton", *fused], "projection": ["triton", "matmul"], "layer": ["triton", "sdpa"]}[p.part]
            for kind in ("forward", "training" if p.part == "layer" else "backward"):
                found += [Cell(p, kind, name) for name in by]
                found += [Cell(replace(p, rows=0), kind, name) for name in fused if p.part == "layer"]
        return list(dict.fromkeys(found)) if self.device == "cuda" else []


SETTINGS = {
    "cuda": Setting("cuda", (512, 4096, 16384, 65536), (128, 256), 768, 12, 65536, "bf16", ("fp16", "fp32")),
    "interpreter": Setting("interpreter", (48,), (16,), 32, 2, 96, "fp16", ("fp32",)),
}
"""Settings by device. Only ``cuda`` has times and targets. ``interpreter`` runs a few programs of each kernel on a CPU."""


def measure(setting: Setting, points: dict[str, Point], save: Callable[[], None], deadline: float) -> bool:
    """Measure what ``points`` lacks, and add it: the rates of the machine, then the checks, then the times.

    Return False if the time was up before the end.

    Args:
        setting: sizes of the measurement.
        points: results so far, by key.
        save: function that saves the results. It is called after each result.
        deadline: time at which to stop, as ``time.monotonic`` returns it.
    """
    cuda = setting.device == "cuda"
    device = torch.device("cuda" if cuda else "cpu")
    work: dict[str, Callable[[], Point]] = {"rates": measure_rates} if cuda else {}
    work |= {f"check {p}": partial(check, p, device) for p in setting.problems()}
    work |= {f"time {cell}": partial(time_cell, cell) for cell in setting.cells()}
    for key in [key for key in work if key not in points]:
        if time.monotonic() > deadline:
            return False
        try:
            points[key] = work[key]()
        except Exception as error:  # kernels and compilers raise anything
            kind, line = "OOM" if out_of_memory(error) else "failed", (str(error).splitlines() or [""])[0]
            points[key] = {"failure": f"{kind}: {type(error).__name__}: {line}"}
        save()
        if cuda:
            torch.cuda.synchronize()  # raises where the device is lost; the next call goes on behind this point
            torch.cuda.empty_cache()
    return True


def time_cell(cell: Cell) -> Point:
    """Return the measured times of a step: the quartiles in seconds, and the seconds that the host takes to launch its kernels.

    For a layer, the result also has the peak bytes beyond those that were in use before.
    """
    from triton.testing import do_bench

    torch.manual_seed(0)
    device = torch.device("cuda")
    with sdpa_kernel(BACKENDS[cell.by]) if cell.by in BACKENDS else nullcontext():
        run = step(cell, device)
        found: Point = {"seconds": [1e-3 * ms for ms in do_bench(run, quantiles=[0.25, 0.5, 0.75])]}
        found["launch_seconds"] = statistics.median(_launch_seconds(run) for _ in range(5))
        return {**found, "peak_bytes": peak_bytes(run, device)} if cell.problem.part == "layer" else found


def step(cell: Cell, device: torch.device) -> Callable[[], object]:
    """Return a function that does the step once.

    A ``forward`` step has no autograd graph. A ``backward`` step reuses one graph. A ``training`` step does both passes.
    """
    function, inputs = build(cell.problem, cell.by, device)
    if isinstance(function, nn.Module):
        function.train(cell.kind == "training")
    values = [x.requires_grad_(cell.kind != "forward") for x in inputs.values()]
    if cell.kind == "forward":
        return torch.no_grad()(lambda: function(*values))
    leaves = [*values, *(function.parameters() if isinstance(function, nn.Module) else [])]
    out = function(*values)
    grad = torch.randn_like(out)
    if cell.kind == "training":
        return lambda: torch.autograd.grad(function(*values), leaves, grad)
    return lambda: torch.autograd.grad(out, leaves, grad, retain_graph=True)


def _launch_seconds(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def measure_rates(size: int = 8192, copied: int = 4 * 10**9) -> Point:
    """Return what the machine does per second: bytes copied, FLOPs of products in bf16, and exponentials.

    Copies and products of random numbers are measured. The rate of exponentials is computed from the highest clock.

    Args:
        size: number of rows and columns of the matrices.
        copied: number of bytes that are copied.
    """
    from triton.testing import do_bench, nvsmi

    def median(run: Callable[[], object]) -> float:
        return 1e-3 * float(do_bench(run, rep=200, return_mode="median"))

    source = torch.randint(-(2**62), 2**62, (copied // 8,), device="cuda")
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rates = {"bytes": 2 * copied / median(source.clone), "flops": 2 * size**3 / median(lambda: left @ right)}
    exponentials_a_hertz = torch.cuda.get_device_properties(0).multi_processor_count * EXPONENTIALS_A_CLOCK
    return {**rates, "exponentials": exponentials_a_hertz * 1e6 * nvsmi(["clocks.max.sm"])[0]}


def begin(output: Path, setting: Setting) -> dict[str, Any]:
    """Return the content of the measurement's file or, if there is no file, that of a new measurement.

    Raises:
        ValueError: the device lacks what the measurement needs, or the file holds something else.
        OSError: the file cannot be read or written.
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if setting.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "there must be a CUDA device, and this machine has none. Set TRITON_INTERPRET=1 and use --device interpreter to "
            "check results without one"
        )
    if interpreted != (setting.device == "interpreter"):  # Triton reads it when it is imported
        raise ValueError(f"--device {setting.device} needs TRITON_INTERPRET={int(not interpreted)} in the environment")
    if (reason := unavailable("triton", torch.device("cuda"))) is not None:
        raise ValueError(f"{reason}; install it with: pip install triton")
    sources = b"".join(path.read_bytes() for path in sorted(Path(linformer.__file__).parent.glob("*.py")))
    environment = {name: describe_environment(setting.device)[name] for name in ("cpu", "gpu", "torch", "cuda")}
    new = {"setting": json.loads(json.dumps(asdict(setting))), "kernels": hashlib.sha256(sources).hexdigest()[:16]}
    new["environment"] = environment
    if not output.exists():
        output.touch()  # finds out before the work whether it can be written
        output.unlink()
        return {**new, "complete": False, "points": {}}
    try:
        earlier = json.loads(output.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        earlier = None
    if not isinstance(earlier, dict) or any(earlier.get(name) != value for name, value in new.items()):
        raise ValueError(
            f"{output} must hold a measurement with the same setting, kernels and machine, but holds another one. Name another file"
        )
    return earlier


def main(words: Sequence[str] | None = None) -> int:
    """Run the measurement, and return the exit status.

    It is 0 if all was measured and every result is right, 2 if the arguments are wrong, and 1 otherwise.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, metavar="OUT.json", help="file of the figures")
    parser.add_argument("--device", choices=SETTINGS, default="cuda", help="cuda, or interpreter for results alone (default: cuda)")
    parser.add_argument("--seconds", type=float, default=540.0, help="time in all, looked at between figures (default: 540)")
    parsed = parser.parse_args(words)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read with the first product; equal runs then give equal bits
    setting, output, deadline = SETTINGS[parsed.device], parsed.output, time.monotonic() + parsed.seconds
    try:
        found = begin(output, setting)
    except (ValueError, OSError) as error:
        parser.error(str(error))

    def save() -> None:
        beside = output.with_name(f"{output.name}.part")
        beside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        beside.replace(output)

    found["complete"] = measure(setting, found["points"], save, deadline)
    save()
    print(Report(found, setting.problems(), setting.cells()))
    if not found["complete"]:
        print("the time was over before the end; run the same command again to resume", file=sys.stderr)
    right = all(found["points"].get(f"check {p}", {}).get("right") for p in setting.problems())
    return 0 if found["complete"] and right else 1


if __name__ == "__main__":
    sys.exit(main())
