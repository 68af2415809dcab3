"""Running the measurement: order, failures, time that is up, going on, and results in the interpreter from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_zoo.cli import main
from attn_zoo.cost.linformer_kernels import clock as clock_module
from attn_zoo.cost.linformer_kernels import experiment
from attn_zoo.cost.linformer_kernels.attempts import attempt
from attn_zoo.cost.linformer_kernels.cases import cases
from attn_zoo.cost.linformer_kernels.clock import Clock, _hertz
from attn_zoo.cost.linformer_kernels.setting import CUDA_DEFAULTS, Limits, Setting, cells
from attn_zoo.cost.linformer_kernels.table import linformer_kernels_table
from attn_zoo.cost.workers import WorkerError

CUDA = Setting("cuda", **CUDA_DEFAULTS, sharing="headwise", rounds=2, repeat_seconds=0.1)


class Scripted:
    """A worker that finds every result right and every step to take a millisecond, but for what ``failing`` names."""

    failing: dict[str, Exception]
    asked: list[tuple[str, str]]
    lock = threading.Lock()

    def __init__(self, make: Any, *arguments: Any, environment: dict[str, str], bounded: bool) -> None:
        self.environment = environment

    def ask(self, method: str, *arguments: Any, limit: float) -> dict[str, Any]:
        key = arguments[0].key if arguments else method
        with self.lock:
            self.asked.append((method, key))
        for part, error in self.failing.items():
            if part in key:
                raise error
        if method == "check":
            errors, bounds = (dict.fromkeys(("out", "x"), value) for value in (1e-4, 1e-3))
            return {"errors": errors, "bounds": bounds, "same": True, "verdict": "right", "failure": None}
        if method == "ceilings":
            rates = {"half_flops": 790e12, "tf32_flops": 395e12, "bytes": 4.3e12, "exponentials": 3.9e12}
            return {"failure": None, **rates, "clock_measured": True, "smi": {}, "triton": "3.6.0"}
        return {"failure": None, "seconds": [1e-3] * 3, "loop_seconds": 2e-3, "peak_bytes": 2**20}

    def stop(self) -> None: ...


@pytest.fixture
def scripted(monkeypatch) -> type[Scripted]:
    monkeypatch.setattr(experiment, "Worker", Scripted)
    Scripted.failing, Scripted.asked = {}, []
    return Scripted


LIMITS = Limits(seconds=100.0, time_limit=10.0, workers=4)


def run(done: Any = (), limits: Limits = LIMITS) -> tuple[list[dict[str, Any]], list[int]]:
    saved: list[int] = []
    points = experiment.measure(CUDA, limits, tell=lambda line: None, save=lambda p: saved.append(len(p)), done=done)
    return points, saved


def test_ceilings_then_results_then_times_and_all_is_saved_at_once(scripted):
    points, saved = run()
    assert saved == list(range(1, len(points) + 1))
    parts = [point["part"] for point in points]
    assert parts == ["ceilings"] + ["check"] * len(cases(CUDA)) + ["time"] * len(cells(CUDA))
    assert [point["key"] for point in points if point["part"] == "time"] == [cell.key for cell in cells(CUDA)]


def test_what_the_command_prints_on_cuda_ends_with_the_targets(scripted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GPU of a test")
    assert main(["measure", "experiment=linformer_kernels", "output=found.json"]) == 0
    printed = capsys.readouterr().out
    assert "**Targets: 7 of 40 reached.**" in printed.splitlines(), "only equal times at all lengths"
    assert "not measured" not in printed
    assert "Measured on GPU of a test" in printed


def test_a_failure_is_a_point(scripted):
    scripted.failing = {"core|forward|512|128|bf16|triton": WorkerError("OOM", "scripted")}
    failed = [point for point in run()[0] if point["failure"]]
    assert [(point["part"], point["failure"]) for point in failed] == [("time", "OOM: scripted")]


def test_what_is_there_is_not_measured_again_but_the_ceilings_are(scripted):
    points, _ = run()
    kept = [point for point in points if point["part"] != "time"][:-3]
    scripted.asked.clear()
    again, _ = run(done=kept)
    assert sorted(point["key"] for point in again if point["part"] != "ceilings") == sorted(p["key"] for p in points[1:])
    assert [method for method, _ in scripted.asked].count("check") == 3
    assert [point["key"] for point in again if point["part"] == "ceilings"] == ["ceilings|1", "ceilings|2"]
    assert {point["call"] for point in again if point["part"] == "time"} == {2}


def test_a_request_that_takes_too_long_is_a_point_unless_the_whole_time_is_up(scripted):
    scripted.failing = {"core|forward|512|128|bf16|triton": WorkerError("time limit", "scripted")}
    assert [p["failure"] for p in run()[0] if p["failure"]] == ["time limit: scripted"]
    saved: list[int] = []
    limits = Limits(seconds=5.0, time_limit=10.0, workers=4)
    with pytest.raises(experiment.TimeIsUpError):
        experiment.measure(CUDA, limits, tell=lambda line: None, save=lambda p: saved.append(len(p)))
    assert saved[-1] == 1 + len(cases(CUDA)), "what was there before is saved, and the cell is left to the next call"


def test_results_that_are_wrong_or_unfinished_end_with_status_1(scripted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["measure", "experiment=linformer_kernels", "device=interpreter", "output=found.json"]
    scripted.failing = {"check|core": WorkerError("failed", "scripted")}
    assert main(words) == 1
    assert "failed: scripted" in capsys.readouterr().out
    Path("found.json").unlink()
    scripted.failing = {"check|projection": WorkerError("time limit", "scripted")}
    assert main([*words, "seconds=5"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("**Not complete")
    assert "the time was over before the end; the same command goes on from there" in captured.err
    scripted.failing = {}
    assert main(words) == 0, "other limits are the same measurement"
    captured = capsys.readouterr()
    assert "going on from there" in captured.err
    assert "Not complete" not in captured.out


def test_results_in_the_interpreter_from_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["measure", "experiment=linformer_kernels", "device=interpreter", "output=found.json"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    found = json.loads(Path("found.json").read_text(encoding="utf-8"))
    assert found["complete"] is True
    assert {point["part"] for point in found["points"]} == {"check"}
    for point in found["points"]:
        assert point["verdict"] == "right", point
        assert all(0 < point["errors"][name] <= bound < 1e-2 for name, bound in point["bounds"].items())
    assert {point["case"]["part"] for point in found["points"]} == {"core", "projection", "layer"}
    assert linformer_kernels_table(found) == printed.rstrip("\n"), "the file is enough to print the table anew"
    assert "not measured" in printed

    Path("found.json").write_text(json.dumps({**found, "complete": False}), encoding="utf-8")
    assert main(words) == 0
    again = capsys.readouterr()
    assert again.out == printed, "all was done"
    assert f"{len(found['points'])} points of this measurement" in again.err


INSIDE = """
import math, sys, torch
from attn_zoo.cost.linformer_kernels import checks, timings
from attn_zoo.cost.linformer_kernels.cases import Case
from attn_zoo.cost.linformer_kernels.setting import Cell, Setting, cells

torch.set_num_threads(1)
setting = Setting("interpreter", (24,), (4,), 16, 2, 48, "fp32", (), "headwise", 1, 0.0)

class Once:
    def __init__(self, device): pass
    def time(self, steps, rounds, at_least):
        assert len(steps) == timings.SETS
        return {"outputs": [step() for step in steps]}

timings.Clock = Once
measure = timings.Timings(setting, torch.device("cpu"))
seen = 0
for cell in cells(setting):
    if cell.who in ("triton", "matmul", "sdpa"):
        found = measure.measure(cell)
        assert found["failure"] is None, (cell, found)
        for output in found["outputs"]:
            tensors = output if isinstance(output, tuple) else (output,)
            wanted = {"core": 3, "projection": 2}.get(cell.part, 99) if cell.kind == "backward" else 1
            assert cell.kind == "training" or len(tensors) == wanted, cell
            assert all(bool(t.isfinite().all()) for t in tensors), cell
            seen += 1
        assert ("peak_bytes" in found) == (cell.part == "layer")
assert seen == timings.SETS * (2 + 8 + 4), seen
softmax = measure._layer(Cell("layer", "training", 24, 0, "fp32", "flash"))
assert len(softmax[0]()) == 9, "tokens and four weights with their biases"

check = checks.Checks("cpu", "headwise")
case = Case("projection", "fp32", 2, 20, 4, 0, 16, padded=True)
assert check.check(case)["verdict"] == "right"
honest, calls = checks.project_sequence, 0
def off(change):
    def wrapped(matrix, tokens, valid):
        global calls
        calls += 1
        return change(honest(matrix, tokens, valid))
    return wrapped
for change in (lambda y: y * 1.0001, lambda y: y + math.nan, lambda y: y + 0 * torch.empty_like(y)):  # the last is unwritten memory
    checks.project_sequence = off(change)
    found = check.check(case)
    assert found["verdict"] == "wrong" and found["same"], found
calls = 0
checks.project_sequence = off(lambda y: y + 1e-7 * calls * y)
found = check.check(case)
assert found["verdict"] == "wrong" and not found["same"], "within the bounds, but not the same twice"
assert all(found["errors"][name] < bound for name, bound in found["bounds"].items())
checks.project_sequence = lambda *_: [].pop()
assert check.check(case)["failure"] == "failed: IndexError: pop from empty list"
checks.project_sequence = honest

honest_attention = checks.linformer_attention
checks.linformer_attention = lambda query, key, value, dropout=0.0, seed=None: honest_attention(query, key, value)
drop = Case("core", "fp32", 1, 20, 4, 1, 16, dropout=0.5)
assert "keeps a share of 1.0000" in check.check(drop)["failure"]
checks.linformer_attention = honest_attention
assert check.check(drop)["verdict"] == "right"
"""


def test_steps_and_checks_inside_the_process():
    """Steps run and give what they should; a wrong, unsteady or raising kernel is not taken for a right one."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", INSIDE], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_an_attempt_that_fails_keeps_the_process_unless_memory_ran_out():
    cpu = torch.device("cpu")
    assert attempt(lambda: {"a": 1}, cpu) == {"a": 1, "failure": None}
    assert attempt(lambda: [].pop(), cpu) == {"failure": "failed: IndexError: pop from empty list"}
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        attempt(lambda: {"x": torch.empty(2**60)}, cpu)


class Gpu:
    """A device that works through its queue while Python goes on: each has a clock of its own."""

    def __init__(self) -> None:
        self.host = self.done = 0.0

    def work(self, seconds: float, launch: float) -> None:
        self.host += launch
        self.done = max(self.done, self.host) + seconds

    def synchronize(self, device: object = None) -> None:
        self.host = self.done = max(self.done, self.host)


@pytest.fixture
def gpu(monkeypatch) -> Gpu:
    gpu = Gpu()

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            gpu.done = self.at = max(gpu.done, gpu.host)

        def elapsed_time(self, later: Event) -> float:
            return 1e3 * (later.at - self.at)

    class Buffer:
        def zero_(self) -> None:
            gpu.work(1e-3, launch=1e-5)

    clocked = type("Time", (), {"perf_counter": staticmethod(lambda: gpu.host)})
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", gpu.synchronize)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: type("P", (), {"total_memory": 2**36}))
    monkeypatch.setattr(torch, "empty", lambda *_, **__: Buffer())
    monkeypatch.setattr(clock_module, "time", clocked)
    monkeypatch.setattr("attn_zoo.cost.timing.time", clocked)
    return gpu


@pytest.mark.parametrize("launch", [2e-5, 5e-4, 4e-3])
def test_the_clock_takes_the_devices_time_and_not_that_of_launching(gpu, launch):
    found = Clock(torch.device("cuda", 0)).time([lambda: gpu.work(5e-5, launch)] * 2, rounds=3, at_least=1e-3)
    assert found["seconds"] == pytest.approx((5e-5,) * 3)
    assert found["rounds"] == pytest.approx([5e-5] * 3)
    assert found["repeats"] == 3 * 20
    assert found["launch_seconds"] == pytest.approx(launch)
    assert found["loop_seconds"] == pytest.approx(max(5e-5, launch), rel=0.1)


def test_the_clock_of_a_device_at_rest_is_not_taken():
    assert _hertz({"clocks.sm": "1755 MHz"}) == 1.755e9
    assert _hertz({"clocks.sm": "345 MHz"}) is None
    assert _hertz({"clocks.sm": "[N/A]"}) is None
    assert _hertz({}) is None
