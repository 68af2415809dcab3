"""The benchmark of Linformer's kernels: what is measured, checks, timings, failures, and resumption."""

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
from kernel_report import STATED, Cell, Report
from linformer_kernels import SETTINGS, main, measure, step, time_cell
from patience import HANG

from attn_zoo.kernels.linformer import linformer_attention, project_sequence

ROOT = Path(__file__).parents[2]
CUDA = SETTINGS["cuda"]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


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
    assert captured.out.startswith("**Not complete") and "run the same command again to resume" in captured.err
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
        ("cuda", "0", "Set TRITON_INTERPRET=1 and use --device interpreter to check results without one"),
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
    assert "Name another file" in capsys.readouterr().err and file.read_text(encoding="utf-8") == content


def test_results_in_the_interpreter_from_end_to_end(tmp_path):
    file = tmp_path / "found.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "linformer_kernels.py"), str(file), "--device", "interpreter"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG, check=False)
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


def small(part: str, rows: int = 4) -> Problem:
    return Problem(part, "fp32", 2, 24, rows, heads=2, dim=16)


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
    for by in ("triton", "matmul" if part == "projection" else "sdpa"):
        found = step(Cell(small(part), kind, by), DEVICE)()
        tensors = found if isinstance(found, tuple) else (found,)
        assert len(tensors) == outputs and all(bool(tensor.isfinite().all()) for tensor in tensors)
        assert tensors[0].requires_grad is False


def test_a_softmax_layer_has_the_gradients_of_tokens_and_four_projections():
    assert len(step(Cell(small("layer", rows=0), "training", "flash"), DEVICE)()) == 9  # type: ignore[arg-type]


def test_a_time_is_that_of_do_bench(monkeypatch):
    asked: list[Any] = []

    def do_bench(run: Any, quantiles: list[float]) -> list[float]:
        asked.append((run(), quantiles))
        return [0.01, 0.02, 0.04]

    monkeypatch.setattr(triton.testing, "do_bench", do_bench)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(linformer_kernels, "step", lambda cell, device: lambda: cell)
    monkeypatch.setattr(linformer_kernels, "peak_bytes", lambda run, device: 77)
    cells = [Cell(small("core"), "forward", "flash"), Cell(small("layer"), "training", "triton")]
    core, layer = map(time_cell, cells)
    assert asked == [(cell, [0.25, 0.5, 0.75]) for cell in cells]
    assert core["seconds"] == pytest.approx([1e-5, 2e-5, 4e-5]) and 0 <= core["launch_seconds"] < 1
    assert "peak_bytes" not in core and layer["peak_bytes"] == 77
