"""Report of the benchmark of Linformer's kernels: least times by hand, tables, and targets."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_checks import Problem
from kernel_report import STATED, Cell, Report, floor_seconds
from linformer_kernels import SETTINGS

TOKENS = 65536
CUDA = SETTINGS["cuda"]


def problem(part: str, length: int, rows: int, precision: str = "bf16") -> Problem:
    return Problem(part, precision, TOKENS // length, length, rows, heads=12, dim=768)


def microseconds(part: str, kind: str, length: int, rows: int) -> int:
    return round(1e6 * floor_seconds(problem(part, length, rows), kind, STATED))


@pytest.mark.parametrize(
    ("length", "rows", "forward", "backward"),
    [
        (512, 128, 59, 105),
        (1024, 128, 53, 88),
        (4096, 128, 48, 82),
        (65536, 128, 47, 82),
        (512, 256, 70, 163),
        (4096, 256, 65, 163),
    ],
)
def test_least_times_of_the_core_by_hand(length, rows, forward, backward):
    assert microseconds("core", "forward", length, rows) == forward
    assert microseconds("core", "backward", length, rows) == backward


def test_terms_of_a_least_time_one_by_one():
    free = {"flops": float("inf"), "bytes": float("inf"), "exponentials": float("inf")}
    core = problem("core", 4096, 128)

    def only(rate: str, p: Problem = core, kind: str = "forward") -> float:
        return floor_seconds(p, kind, free | {rate: 1.0})

    assert [only(rate) for rate in free] == [25769803776, 207618048, 100663296]
    assert microseconds("projection", "forward", 4096, 256) == 33, "arithmetic"
    assert microseconds("projection", "forward", 512, 256) == 35, "bytes"
    assert STATED["exponentials"] == pytest.approx(3.9e12, rel=0.01)
    fp32 = problem("core", 4096, 128, "fp32")
    assert only("flops", fp32) == 6 * only("flops"), "three products at half the rate"
    assert only("bytes", fp32) == 2 * only("bytes")
    assert only("bytes", fp32, "backward") == 4 * (3 * TOKENS * 768 + 2 * 16 * 128 * 768) + 8 * 16 * 128 * 768
    assert only("bytes", problem("projection", 4096, 256), "backward") == 2 * (
        3 * TOKENS * 768 + 2 * 4096 * 256 + 2 * 16 * 256 * 768
    )


def timed(share: float, cell: Cell, **changes: Any) -> dict[str, Any]:
    """Return a timed point: of Triton, the least time is ``share`` of its time; of PyTorch, ``share`` is the time in seconds."""
    seconds = floor_seconds(cell.problem, cell.kind, STATED) / share if cell.by == "triton" else share
    peak = (100 if cell.problem.rows else 150) * 2**20
    return {f"time {cell}": {"seconds": [seconds] * 3, "launch_seconds": 1e-6, "peak_bytes": peak, **changes}}


def checked(p: Problem, **changes: Any) -> dict[str, Any]:
    return {f"check {p}": {"results": {"out": [1e-3, 4e-3], "key": [2e-3, 4e-3]}, "same": True, "right": True, **changes}}


def report(points: dict[str, Any], complete: bool = True) -> str:
    environment = {"gpu": "GPU of a test", "torch": "2.11.0", "cuda": "13.0"}
    written = {"complete": complete, "environment": environment, "points": {"rates": dict(STATED), **points}}
    return str(Report(written, CUDA.problems(), CUDA.cells()))


def row(table: str, *first: str) -> dict[str, str]:
    """Return the row of a table that begins with these cells, by heading."""
    head: list[str] = []
    for before, line in zip(["", *table.splitlines()], table.splitlines(), strict=False):
        values = [value.strip() for value in line.strip("|").split("|")]
        if line.startswith("|--"):
            head = [value.strip() for value in before.strip("|").split("|")]
        if tuple(values[: len(first)]) == first:
            return dict(zip(head, values, strict=True))
    raise AssertionError(f"no row {first}")


def test_times_stand_beside_the_least_and_pytorchs_best():
    p = problem("core", 4096, 128)
    ours = Cell(p, "forward", "triton")
    fast = timed(0.8, ours)
    points = checked(p) | fast | timed(2e-4, Cell(p, "forward", "flash")) | timed(1e-4, Cell(p, "forward", "cudnn"))
    found = row(report(points), "core forward", "bf16", "128", "4096")
    assert (found["results"], found["time (µs)"], found["floor"], found["floor / time"]) == ("right", "60.4 ± 0.0", "48.3", "0.80")
    assert (found["PyTorch (µs)"], found["PyTorch / ours"]) == ("100.0 ± 0.0 (cudnn)", "1.66")
    (point,) = fast.values()
    unsteady = {**point, "seconds": [share * point["seconds"][1] for share in (0.9, 1.0, 1.3)], "launch_seconds": 1e-3}
    assert (
        row(report({f"time {ours}": unsteady}), "core forward", "bf16", "128", "4096")["time (µs)"] == "60.4 ± 12.1 unstable launch"
    )
    assert row(report({}), "core forward", "bf16", "128", "4096")["time (µs)"] == "not measured"
    doubled = report({**points, "rates": {name: 2 * rate for name, rate in STATED.items()}})
    assert row(doubled, "core forward", "bf16", "128", "4096")["floor"] == "24.1"


@pytest.mark.parametrize(
    ("share", "changes", "verdict"),
    [
        (0.7001, {}, "reached"),
        (0.6999, {}, "missed"),
        (0.9, {"right": False, "results": {"out": [1e-3, 4e-3], "key": [None, 4e-3]}}, "wrong"),
        (0.9, {"right": False, "same": False}, "wrong"),
        (0.9, {"failure": "failed: CompilationError: at 1:2"}, "failed"),
    ],
)
def test_a_target_counts_only_where_results_are_right(share, changes, verdict):
    p = problem("core", 4096, 128)
    table = report(checked(p, **changes) | timed(share, Cell(p, "forward", "triton")))
    found = row(table, "core forward r=128 n=4096: floor / time")
    assert (found["at least"], found["verdict"]) == ("0.70", verdict)
    assert f"**Targets: {int(verdict == 'reached')} of 40 reached.**" == table.splitlines()[-1]
    assert ("CompilationError: at 1:2" in table) == ("failure" in changes)
    assert row(table, str(p))["verdict"] == (verdict if verdict in ("wrong", "failed") else "right")
    if "results" in changes:
        assert (row(table, str(p))["worst"], row(table, str(p))["error"]) == ("key", "NaN")
