"""Table 3: the paper's grid and figures, the rules of the measurement, and the table of a fixture with cells of every kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attn_zoo.contract import UnknownNameError, auto_order
from attn_zoo.cost.linformer_table3 import experiment
from attn_zoo.cost.linformer_table3 import setting as table3_setting
from attn_zoo.cost.linformer_table3.paper import LENGTHS, MEMORY_SAVED, PROJECTED_LENGTHS, TIME_SAVED
from attn_zoo.cost.linformer_table3.setting import entries, grid, resolve_setting
from attn_zoo.cost.linformer_table3.table import linformer_table3_table
from attn_zoo.cost.workers import WorkerError

GIVEN: dict[str, Any] = {
    "device": "cpu",
    "lengths": None,
    "projected_lengths": None,
    "dim": None,
    "heads": None,
    "precision": None,
    "tokens": None,
    "sharing": "headwise",
    "implementation": "auto",
    "memory_gib": 16.0,
    "rounds": 3,
    "repeat_seconds": 0.0,
    "time_limit": 60.0,
}


def test_the_grid_is_the_papers():
    cells = grid(LENGTHS, PROJECTED_LENGTHS)
    assert len(cells) == 34
    assert set(cells) == set(TIME_SAVED) == set(MEMORY_SAVED)
    assert grid([512, 1024], [128, 512]) == [(512, 128), (1024, 128), (1024, 512)], "k below n only"


def test_some_of_the_papers_figures():
    assert (TIME_SAVED[512, 128], TIME_SAVED[4096, 256], TIME_SAVED[65536, 2048]) == ("1.5", "3.2", "7.9")
    assert (MEMORY_SAVED[512, 256], MEMORY_SAVED[16384, 128], MEMORY_SAVED[65536, 2048]) == ("1.5", "56", "18")


def test_a_cpu_gets_a_smaller_grid_and_says_so():
    setting = resolve_setting(GIVEN)
    assert setting.lengths == (512, 1024, 2048, 4096, 8192)
    assert setting.projected_lengths == (128, 256, 512)
    assert setting.reduced() == ["lengths up to 8192 of 65536", "k up to 512 of 2048", "width 256 of 768, 4 heads of 12"]
    assert setting.memory_bytes == 16 * 2**30
    whole = {**GIVEN, "lengths": LENGTHS, "projected_lengths": PROJECTED_LENGTHS, "dim": 768, "heads": 12}
    assert resolve_setting(whole).reduced() == []


def test_layers_at_a_length_are_both_baselines_and_linformer_for_each_k_below_it():
    found = entries(resolve_setting(GIVEN), 512)
    assert [entry.role for entry in found] == ["materialised", "sdpa", "linformer", "linformer"]
    assert [entry.projected_length for entry in found] == [None, None, 128, 256]
    assert [entry.subject.implementation for entry in found] == ["eager", "sdpa", "sdpa", "sdpa"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"device": "tpu"}, "device is auto, cpu, or cuda"),
        ({"precision": "fp8"}, "precision is one of fp32, bf16, fp16"),
        ({"dim": 10}, "dim must be divisible by heads"),
        ({"lengths": [64, 64]}, "lengths are different whole numbers"),
        ({"lengths": [64], "projected_lengths": [64]}, "nothing to compare"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"time_limit": 0.0}, "time_limit must be above 0"),
        ({"implementation": "xformers"}, "cannot run projected_length=128 on cpu"),
        ({"sharing": "nonsense"}, "nonsense"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises((ValueError, UnknownNameError), match=message):
        resolve_setting({**GIVEN, **wrong})


def test_least_bytes_of_materialised_softmax_by_hand():
    setting = resolve_setting(GIVEN)
    assert experiment.least_bytes(setting, "forward", 2, 1000) == 2 * 2 * 4 * 1000 * 1000 * 4
    assert experiment.least_bytes(setting, "training", 2, 1000) == 3 * 2 * 4 * 1000 * 1000 * 4


class Scripted:
    """A worker that holds batches up to ``most``, whose memory is 100 + 10 · batch bytes and whose step takes batch seconds."""

    most = 2

    def __init__(self, *arguments: Any, bounded: bool) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def ask(self, method: str, *arguments: Any, limit: float) -> Any:
        self.asked.append((method, *arguments))
        if method in ("held", "peak"):
            return 50 + 5 * arguments[-2]
        if arguments[1] > self.most:
            raise WorkerError("OOM", "scripted")
        return float(arguments[1]), None if arguments[0] == "forward" else arguments[1] / 2

    def stop(self) -> None: ...


def scripted(monkeypatch, **changes: Any) -> list[dict[str, Any]]:
    monkeypatch.setattr(experiment, "Worker", Scripted)
    given = {**GIVEN, "lengths": [64], "projected_lengths": [16], "tokens": 512, **changes}
    saved: list[int] = []
    points = experiment.measure(resolve_setting(given), tell=lambda line: None, save=lambda points: saved.append(len(points)))
    assert saved == [3]
    return points


def test_a_batch_that_does_not_fit_is_halved_and_every_round_is_kept(monkeypatch):
    for point in scripted(monkeypatch):
        assert point["batch"] == {"forward": 2, "training": 2}, "from 512 // 64 = 8 by way of 4"
        assert point["seconds"] == {"forward": [2.0] * 3, "training": [2.0] * 3, "backward": [1.0] * 3}
        assert point["failures"] == {}


def test_out_of_memory_at_one_sequence_is_a_cell(monkeypatch):
    monkeypatch.setattr(Scripted, "most", 0)
    for point in scripted(monkeypatch):
        assert point["failures"] == {"forward": "OOM: scripted", "training": "OOM: scripted"}
        assert point["seconds"]["forward"] == []


def test_largest_batches_on_a_cpu_come_from_the_line(monkeypatch):
    points = scripted(monkeypatch, memory_gib=1099 / 2**30)
    assert points[0]["memory"]["forward"] == {"largest_batch": 0, "by": "arithmetic", "least_bytes": 2 * 4 * 64 * 64 * 4}
    expected = {"largest_batch": 99, "by": "line", "batches": (8, 16), "held": [90, 130], "peaks": [90, 130]}
    assert points[2]["memory"]["training"] == expected


def test_lengths_that_are_done_are_not_measured_again(monkeypatch):
    monkeypatch.setattr(experiment, "Worker", Scripted)
    setting = resolve_setting({**GIVEN, "lengths": [64, 128], "projected_lengths": [16]})
    done = [{"length": 64, "role": "kept"}]
    points = experiment.measure(setting, tell=lambda line: None, save=lambda points: None, done=done)
    assert [(p["length"], p["role"]) for p in points] == [
        (64, "kept"),
        (128, "materialised"),
        (128, "sdpa"),
        (128, "linformer"),
    ]


def test_kernels_are_for_few_projected_keys(monkeypatch):
    monkeypatch.setattr(table3_setting, "auto_may_take", lambda name, device: True)
    monkeypatch.setattr(table3_setting, "auto_order", lambda device: auto_order(torch.device("cuda")))
    setting = resolve_setting({**GIVEN, "lengths": [1024]})
    chosen = {e.projected_length: e.subject.implementation for e in entries(setting, 1024) if e.role == "linformer"}
    assert chosen == {128: "triton", 256: "triton", 512: "sdpa"}


def point(role: str, seconds: list[float], largest: int | None, **changes: Any) -> dict[str, Any]:
    memory = {} if largest is None else {kind: {"largest_batch": largest} for kind in ("forward", "training")}
    subject = {"attention": role, "options": {}, "implementation": changes.pop("implementation", "sdpa"), "backend": None}
    subject["backend"] = changes.pop("backend", None)
    found = {"length": 512, "role": role, "subject": subject, "projected_length": None, "failures": {}, "memory": memory}
    taken = {"forward": seconds, "training": [3 * s for s in seconds], "backward": [2 * s for s in seconds]}
    return {**found, "batch": {"forward": 2, "training": 2}, "seconds": taken, **changes}


def fixture() -> dict[str, Any]:
    out = dict.fromkeys(("forward", "training"), "OOM: by arithmetic")
    slow = {"failures": dict.fromkeys(("forward", "training"), "time limit: not done after 60 s")}
    points = [
        point("materialised", [0.8, 0.88, 0.8], 100),
        point("sdpa", [0.4, 0.4, 0.4], 300, backend="flash"),
        point("sdpa", [0.2, 0.2, 0.2], 250, backend="cudnn"),
        point("linformer", [0.25, 0.25, 0.25], 170, projected_length=128, implementation="triton"),
        point("linformer", [0.2, 0.4, 1.6], 150, projected_length=256),
        point("materialised", [], 0, length=65536, failures=out),
        point("sdpa", [6.0, 6.0, 6.0], 10, length=65536, backend="flash"),
        point("sdpa", [], None, length=65536, backend="cudnn", failures={"memory forward": "failed: RuntimeError: x", **out}),
        point("linformer", [0.05, 0.05, 0.05], 42, length=65536, projected_length=128, implementation="triton"),
        point("linformer", [], 41, length=65536, projected_length=256, **slow),
    ]
    setting = {
        "device": "cuda",
        "projected_lengths": [128, 256],
        "dim": 768,
        "heads": 12,
        "precision": "bf16",
        "tokens": 65536,
        "rounds": 3,
        "memory_bytes": 16 * 2**30,
        "sharing": "layerwise",
        "reduced": ["k up to 256 of 2048"],
    }
    environment = {"gpu": "GPU of a test", "cpu": "CPU", "threads": 2, "torch": "2.15.0"}
    return {"complete": True, "setting": setting, "environment": environment, "points": points}


def cells(table: str) -> dict[tuple[str, str], list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    return {(row[0], row[1]): row[2:] for row in rows[2:]}


def test_time_table_of_the_fixture():
    table = linformer_table3_table(fixture(), ["forward time"])
    assert cells(table) == {
        ("512", "materialised"): ["400", "3.2 ± 0.1 (paper 1.5)", "2.2 ± 0.9 unstable (paper 1.3)"],
        ("512", "SDPA (cudnn)"): ["100", "0.80 ± 0.00 (paper 1.5)", "0.50 ± 0.22 unstable (paper 1.3)"],
        ("65536", "materialised"): ["OOM", "baseline OOM (paper 20)", "time limit (paper 18)"],
        ("65536", "SDPA (flash)"): ["3000", "120 ± 0 (paper 20)", "time limit (paper 18)"],
    }
    assert "- linformer k=256 (sdpa) at 65536, forward: time limit: not done after 60 s" in table
    assert "Reduced against the paper: k up to 256 of 2048." in table
    assert "Measured on GPU of a test, torch 2.15.0." in table


def test_training_has_no_figure_of_the_paper():
    table = cells(linformer_table3_table(fixture(), ["backward time"]))
    assert table["512", "materialised"] == ["800", "3.2 ± 0.1", "2.2 ± 0.9 unstable"]


def test_memory_table_of_the_fixture():
    assert cells(linformer_table3_table(fixture(), ["forward memory"])) == {
        ("512", "materialised"): ["100", "1.7 (paper 1.7)", "1.5 (paper 1.5)"],
        ("512", "SDPA (flash)"): ["300", "0.57 (paper 1.7)", "0.50 (paper 1.5)"],
        ("65536", "materialised"): ["OOM", "> 42 (paper 60)", "> 41 (paper 52)"],
        ("65536", "SDPA (flash)"): ["10", "4.2 (paper 60)", "4.1 (paper 52)"],
    }


def test_a_measurement_that_was_cut_short_says_so():
    assert linformer_table3_table({**fixture(), "complete": False}).startswith("**Not complete")
    assert "Not complete" not in linformer_table3_table(fixture())
