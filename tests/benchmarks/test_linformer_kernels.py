"""The benchmark of Linformer's kernels: checks, steps, and resumption."""

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
from kernel_checks import Problem, check
from kernel_report import STATED, Cell, Report
from linformer_kernels import SETTINGS, main, step
from patience import HANG

from attn_zoo.kernels.linformer import linformer_attention, project_sequence

ROOT = Path(__file__).parents[2]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


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
