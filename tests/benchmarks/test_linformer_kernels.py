"""The benchmark of Linformer's kernels: least times by hand, checks, timings, failures, resumption, and its tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernel_checks
import linformer_kernels
import pytest
import torch
import triton.testing
from kernel_checks import Problem, check
from kernel_report import STATED, Cell, Report, floor_seconds
from linformer_kernels import SETTINGS, main, measure, step, time_cell

from attn_zoo.kernels.linformer import linformer_attention, project_sequence

ROOT = Path(__file__).parents[2]
TOKENS = 65536
CUDA = SETTINGS["cuda"]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


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


@pytest.mark.parametrize(("length", "forward"), [(512, 338), (4096, 283), (65536, 276)])
def test_least_times_of_the_layer_by_hand(length, forward):
    assert microseconds("layer", "forward", length, 128) == forward
    p, square = problem("layer", length, 128), 768**2
    linear = max(2 * TOKENS * square / 790e12, 2 * (2 * TOKENS * 768 + square) / 4.3e12)
    both = max(4 * p.batch * 128 * square / 790e12, 2 * (4 * p.batch * 128 * 768 + 2 * square) / 4.3e12)
    kernels = [problem("core", length, 128), problem("projection", length, 256)]
    once, back = (sum(floor_seconds(kernel, kind, STATED) for kernel in kernels) for kind in ("forward", "backward"))
    assert floor_seconds(p, "training", STATED) == pytest.approx(3 * (2 * linear + both) + once + back)


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


def test_what_is_timed_and_all_of_ours_is_checked():
    cells = CUDA.cells()
    assert len({str(cell) for cell in cells}) == len(cells)
    core = [cell for cell in cells if cell.problem.part == "core" and cell.problem.precision == "bf16"]
    assert len(core) == 2 * 4 * 2 * 4, "r, n, forward and backward, ours and three of PyTorch's"
    assert {cell.problem.rows for cell in cells if cell.problem.part == "projection"} == {128, 256, 512}, (
        "one matrix, and two stacked"
    )
    layers = {(cell.by, cell.problem.rows) for cell in cells if cell.problem.part == "layer"}
    assert layers == {(by, rows) for by in ("triton", "sdpa") for rows in (128, 256)} | {
        (by, 0) for by in ("flash", "cudnn", "efficient")
    }
    spots = [cell for cell in cells if cell.problem.precision != "bf16"]
    assert {cell.problem.length for cell in spots} == {4096}
    assert {cell.by for cell in spots if cell.problem.precision == "fp32"} == {"triton", "efficient", "matmul"}
    assert {cell.problem for cell in cells if cell.by == "triton"} == set(CUDA.problems())
    interpreted = SETTINGS["interpreter"]
    assert not interpreted.cells() and {p.part for p in interpreted.problems()} == {"core", "projection", "layer"}
    assert all(p.precision != "bf16" for p in interpreted.problems()), "the interpreter computes nonsense in it"


@pytest.fixture(autouse=True)
def environment(monkeypatch) -> None:
    """Restore, after each test, the environment variable that ``main`` sets."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture
def scripted(monkeypatch) -> dict[str, Exception]:
    """Fake device: all results are right and each step takes a millisecond, except for errors that a test adds by key."""
    failing: dict[str, Exception] = {}

    def answer(key: str, point: dict[str, Any]) -> dict[str, Any]:
        for part, error in failing.items():
            if part in key:
                raise error
        return point

    def fake_check(p: Problem, device: torch.device) -> dict[str, Any]:
        return answer(f"check {p}", {"results": {"out": [1e-4, 1e-3], "x": [1e-4, 1e-3]}, "same": True, "right": True})

    def fake_time(cell: Cell) -> dict[str, Any]:
        return answer(f"time {cell}", {"seconds": [1e-3] * 3, "launch_seconds": 1e-4, "peak_bytes": 2**20})

    monkeypatch.setattr(linformer_kernels, "check", fake_check)
    monkeypatch.setattr(linformer_kernels, "time_cell", fake_time)
    monkeypatch.setattr(linformer_kernels, "measure_rates", lambda: answer("rates", dict(STATED)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return failing


def test_rates_then_results_then_times_and_each_is_saved_at_once(scripted):
    points: dict[str, Any] = {}
    saved: list[int] = []
    assert measure(CUDA, points, lambda: saved.append(len(points)), float("inf"))
    assert saved == list(range(1, len(points) + 1))
    wanted = ["rates", *(f"check {p}" for p in CUDA.problems()), *(f"time {cell}" for cell in CUDA.cells())]
    assert list(points) == wanted


def test_a_failure_is_a_point_and_what_is_there_is_not_measured_again(scripted):
    cell = CUDA.cells()[0]
    scripted[str(cell)] = torch.OutOfMemoryError("3 GiB\nmore")
    points: dict[str, Any] = {}
    assert measure(CUDA, points, lambda: None, float("inf"))
    assert {key: point for key, point in points.items() if "failure" in point} == {
        f"time {cell}": {"failure": "OOM: OutOfMemoryError: 3 GiB"}
    }
    scripted[""] = RuntimeError("asked again")
    before = dict(points)
    del points[f"time {CUDA.cells()[-1]}"]
    assert measure(CUDA, points, lambda: None, float("inf"))
    assert points == before | {f"time {CUDA.cells()[-1]}": {"failure": "failed: RuntimeError: asked again"}}


def test_a_lost_device_ends_the_call_and_the_next_goes_on_behind_it(scripted, monkeypatch):
    points: dict[str, Any] = {}
    saved: list[list[str]] = []

    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        measure(CUDA, points, lambda: saved.append(list(points)), float("inf"))
    assert saved == [["rates"]]


def test_time_that_is_up_and_results_that_are_wrong_end_with_status_1(scripted, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    words = [str(tmp_path / "found.json"), "--device", "interpreter"]
    assert main([*words, "--seconds", "0"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("**Not complete") and "the same command goes on from there" in captured.err
    assert main(words) == 0 and "Not complete" not in capsys.readouterr().out
    before = (tmp_path / "found.json").read_bytes()
    scripted[""] = RuntimeError("asked again")
    assert main(words) == 0 and (tmp_path / "found.json").read_bytes() == before
    (tmp_path / "found.json").unlink()
    scripted.clear()
    scripted["check core"] = RuntimeError("does not compile")
    assert main(words) == 1 and "failed: RuntimeError: does not compile" in capsys.readouterr().out


def test_what_the_command_prints_on_cuda_ends_with_the_targets(scripted, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GPU of a test")
    assert main([str(tmp_path / "found.json")]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == "**Targets: 7 of 40 reached.**", "only equal times at all lengths"
    assert "not measured" not in printed and "Measured on GPU of a test" in printed


@pytest.mark.parametrize(
    ("device", "interpreted", "message"),
    [
        ("cuda", "0", "no CUDA device; TRITON_INTERPRET=1 and --device interpreter"),
        ("interpreter", "0", "--device interpreter needs TRITON_INTERPRET=1"),
        ("cpu", "0", "invalid choice: 'cpu'"),
    ],
)
def test_what_is_not_here_is_refused_before_anything_is_written(device, interpreted, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", interpreted)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "found.json"), "--device", device])
    assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["no JSON", "[]", '{"setting": {}}'])
def test_another_file_is_not_overwritten(content, scripted, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    file = tmp_path / "found.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        main([str(file), "--device", "interpreter"])
    assert "name another file" in capsys.readouterr().err and file.read_text(encoding="utf-8") == content


def test_results_in_the_interpreter_from_end_to_end(tmp_path):
    file = tmp_path / "found.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "linformer_kernels.py"), str(file), "--device", "interpreter"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text(encoding="utf-8"))
    setting = SETTINGS["interpreter"]
    assert found["complete"] and list(found["points"]) == [f"check {p}" for p in setting.problems()]
    for point in found["points"].values():
        assert point["right"] and point["same"] and len(point["results"]) >= 3
        assert all(0 < error <= bound < 1e-2 for error, bound in point["results"].values())
    assert str(Report(found, setting.problems(), setting.cells())) == done.stdout.rstrip("\n"), "the file is enough for the tables"
    assert "no times" in done.stdout


SMALL = Problem("projection", "fp32", 2, 20, 4, heads=1, dim=16)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda y, calls: y * 1.0001, True),
        (lambda y, calls: y + torch.nan, True),
        (lambda y, calls: y + 0 * torch.empty_like(y), True),  # memory that was not written
        (lambda y, calls: y + 1e-7 * calls * y, False),
    ],
)
def test_a_wrong_or_unsteady_kernel_is_not_right(change, same, monkeypatch):
    assert check(SMALL, DEVICE)["right"]
    kernel, calls = project_sequence, []

    def changed(*inputs: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return change(kernel(*inputs), len(calls))

    monkeypatch.setattr(kernel_checks, "project_sequence", changed)
    found = check(SMALL, DEVICE)
    assert not found["right"] and found["same"] == same
    if not same:
        assert all(error < bound for error, bound in found["results"].values()), "within the bounds, but not the same twice"
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_wrong_gradient_alone_is_wrong(monkeypatch):
    monkeypatch.setattr(kernel_checks, "linformer_attention", lambda q, k, v: linformer_attention(q, k.detach(), v) + 0 * k.sum())
    found = check(Problem("core", "fp32", 1, 20, 4, heads=1, dim=16), DEVICE)
    assert not found["right"] and found["results"]["out"][0] < 5e-6 and found["results"]["key"][0] == pytest.approx(1)


@pytest.mark.parametrize(
    ("part", "kind", "outputs"),
    [
        ("core", "forward", 1),
        ("core", "backward", 3),
        ("projection", "forward", 1),
        ("projection", "backward", 2),
        ("layer", "forward", 1),
        ("layer", "training", 10),
    ],
)
def test_steps_give_outputs_or_all_gradients(part, kind, outputs):
    p = Problem(part, "fp32", 2, 24, 4, heads=2, dim=16)
    for by in ("triton", "matmul" if part == "projection" else "sdpa"):
        found = step(Cell(p, kind, by), DEVICE)()
        tensors = found if isinstance(found, tuple) else (found,)
        assert len(tensors) == outputs and all(bool(tensor.isfinite().all()) for tensor in tensors)
        assert tensors[0].requires_grad is False


def test_a_softmax_layer_has_the_gradients_of_tokens_and_four_projections():
    p = Problem("layer", "fp32", 2, 24, 0, heads=2, dim=16)
    assert len(step(Cell(p, "training", "flash"), DEVICE)()) == 9  # type: ignore[arg-type]


def test_a_time_is_that_of_do_bench(monkeypatch):
    asked: list[Any] = []

    def do_bench(run: Any, quantiles: list[float]) -> list[float]:
        asked.append((run(), quantiles))
        return [0.01, 0.02, 0.04]

    monkeypatch.setattr(triton.testing, "do_bench", do_bench)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(linformer_kernels, "step", lambda cell, device: lambda: cell)
    monkeypatch.setattr(linformer_kernels, "peak_bytes", lambda run, device: 77)
    cells = [Cell(problem("core", 4096, 128), "forward", "flash"), Cell(problem("layer", 4096, 128), "training", "triton")]
    core, layer = map(time_cell, cells)
    assert asked == [(cell, [0.25, 0.5, 0.75]) for cell in cells]
    assert core["seconds"] == pytest.approx([1e-5, 2e-5, 4e-5]) and 0 <= core["launch_seconds"] < 1
    assert "peak_bytes" not in core and layer["peak_bytes"] == 77


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


def test_targets_of_layers_and_of_equal_times():
    short, long, training = (problem("layer", n, r) for n, r in ((512, 128), (65536, 128), (16384, 256)))
    points = checked(short) | checked(long) | checked(training)
    points |= timed(1.0, Cell(short, "forward", "triton")) | timed(1.0, Cell(long, "forward", "triton"))
    points |= timed(1.0, Cell(training, "training", "triton"))
    for p, kind, seconds in ((short, "forward", 4e-4), (long, "forward", 0.0276), (training, "training", 0.01)):
        softmax = Problem("layer", "bf16", p.batch, p.length, 0, p.heads, p.dim)
        points |= timed(seconds, Cell(softmax, kind, "flash"))
    table = report(points)
    assert row(table, "layer forward r=128 n=512: softmax / ours")["verdict"] == "missed"
    assert row(table, "layer forward r=128 n=65536: softmax / ours")["figure"] == "100.01"
    memory = row(table, "layer training r=256 n=16384: bytes, softmax / ours")
    assert (memory["figure"], memory["at least"], memory["verdict"]) == ("1.50", "1.40", "reached")
    assert row(table, "layer training r=256 n=65536: bytes, softmax / ours")["verdict"] == "not measured"
    base, longest = problem("core", 4096, 128), problem("core", 65536, 128)
    points = checked(longest) | timed(0.8, Cell(base, "forward", "triton"))
    slow = {key: {**point, "seconds": [7e-5] * 3} for key, point in timed(0.8, Cell(longest, "forward", "triton")).items()}
    found = row(report(points | slow), "core forward r=128 n=65536: time at 4096 / time")
    assert (found["figure"], found["at least"], found["verdict"]) == ("0.86", "0.87", "missed")


def test_a_measurement_that_was_cut_short_says_so_and_missing_rates_are_an_h200s():
    assert report({}, complete=False).startswith("**Not complete")
    assert "Rates of an H200, as its own are missing: copy 4.30 TB/s" in report({"rates": {"failure": "failed: x"}})
    assert "Rates: copy 4.30 TB/s, bf16 product 790 TFLOP/s" in report({})
