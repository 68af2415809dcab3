"""Table 3: the paper's grid and figures, the rules of the measurement, and the table of a fixture with cells of every kind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from linformer_table3 import LENGTHS, MEMORY_SAVED, PROJECTED_LENGTHS, TIME_SAVED, LinformerTable3, pairs, table3_report

from attn_zoo.bench import session
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.bench.session import Session
from attn_zoo.bench.workers import WorkerError
from attn_zoo.cli.measure import run_experiment
from attn_zoo.count.subjects import Subject
from attn_zoo.rows import RowName

GIVEN: dict[str, Any] = {"device": "cpu", "sharing": "headwise", "rounds": 3, "repeat_seconds": 0.0, "time_limit": 60.0}


def test_the_grid_is_the_papers():
    cells = pairs(LENGTHS, PROJECTED_LENGTHS)
    assert len(cells) == 34
    assert set(cells) == set(TIME_SAVED) == set(MEMORY_SAVED)
    assert pairs([512, 1024], [128, 512]) == [(512, 128), (1024, 128), (1024, 512)], "k below n only"


def test_some_of_the_papers_figures():
    assert (TIME_SAVED[512, 128], TIME_SAVED[4096, 256], TIME_SAVED[65536, 2048]) == ("1.5", "3.2", "7.9")
    assert (MEMORY_SAVED[512, 256], MEMORY_SAVED[16384, 128], MEMORY_SAVED[65536, 2048]) == ("1.5", "56", "18")


class Scripted:
    """A worker that holds batches up to ``most``, whose memory is 100 + 10 · batch bytes and whose step takes batch seconds."""

    most = 2
    timed: list[tuple[str, int]] = []  # noqa: RUF012

    def __init__(self, *arguments: Any, bounded: bool) -> None: ...

    def ask(self, method: str, kind: str, batch: int, length: int, limit: float) -> Any:
        if method in ("held", "peak"):
            return 50 + 5 * batch
        if batch > self.most:
            raise WorkerError("OOM", "scripted")
        self.timed.append((kind, length))
        return (float(batch),) if kind == "forward" else (batch / 2, batch / 2)

    def stop(self) -> None: ...


def scripted(monkeypatch, found: Measurement | None = None, **changes: Any) -> tuple[Measurement, list[dict[str, Any]]]:
    monkeypatch.setattr(session, "Worker", Scripted)
    monkeypatch.setattr(Scripted, "timed", [])
    grid = LinformerTable3(**{**GIVEN, "lengths": [64], "projected_lengths": [16], "tokens": 512, **changes})
    made = Measurement("linformer_table3", grid.identity(), grid.protocol, {}) if found is None else found
    saved: list[dict[str, Any]] = []
    Session(grid, made, save=lambda at: saved.append(json.loads(json.dumps(at.to_dict())))).run()
    return made, saved


def test_a_batch_that_does_not_fit_is_halved_and_every_round_is_kept(monkeypatch):
    found, _ = scripted(monkeypatch)
    assert not any(cell.failures for cell in found.cells)
    timed = [cell for cell in found.cells if cell.batch == 2]
    assert len(timed) == 3 * 2, "from 512 // 64 = 8 by way of 4"
    for cell in timed:
        assert cell.all("seconds") == [2.0] * 3
        assert cell.all("backward_seconds") == ([1.0] * 3 if cell.kind == "training" else [])


def test_out_of_memory_at_one_sequence_is_a_cell(monkeypatch):
    monkeypatch.setattr(Scripted, "most", 0)
    found, _ = scripted(monkeypatch)
    assert {cell.batch for cell in found.cells} == {1}
    for cell in found.cells:
        assert cell.failures["seconds"] == "OOM: scripted" and not cell.all("seconds")


def test_largest_batches_on_a_cpu_come_from_the_line(monkeypatch):
    found, _ = scripted(monkeypatch, memory_gib=1099 / 2**30)
    assert {cell.one("largest_batch") for cell in found.cells if cell.batch == 1} == {99}


def point(role: str, seconds: list[float], largest: int | None, length: int = 512, **changes: Any) -> list[Cell]:
    """Cells of both directions of a layer, in batches of two."""
    options = {"projected_length": changes["k"]} if "k" in changes else {}
    subject = Subject(role, options, changes.get("implementation", "sdpa"), changes.get("backend"))
    label = str(RowName("linformer", options, subject.implementation)) if options else f"softmax ({subject.backend or role})"
    taken = {"forward": {"seconds": seconds}, "training": {"seconds": [3 * s for s in seconds]}}
    taken["training"]["backward_seconds"] = [2 * s for s in seconds]
    cells = []
    for kind, values in taken.items():
        cells.append(Cell(label, kind, length, 2, role=role, subject=subject))
        cells[-1].values.update({name: list(each) for name, each in values.items() if each})
        cells[-1].values.update({} if largest is None else {"largest_batch": [largest]})
        cells[-1].failures.update(changes.get("failures", {}))
    return cells


def fixture() -> Measurement:
    out = {"seconds": "OOM: by arithmetic"}
    slow = {"failures": {"seconds": "time limit: not done after 60 s"}}
    points = [
        point("materialised", [0.8, 0.88, 0.8], 100),
        point("sdpa", [0.4, 0.4, 0.4], 300, backend="flash"),
        point("sdpa", [0.2, 0.2, 0.2], 250, backend="cudnn"),
        point("linformer", [0.25, 0.25, 0.25], 170, k=128, implementation="triton"),
        point("linformer", [0.2, 0.4, 1.6], 150, k=256),
        point("materialised", [], 0, length=65536, failures=out),
        point("sdpa", [6.0, 6.0, 6.0], 10, length=65536, backend="flash"),
        point("sdpa", [], None, length=65536, backend="cudnn", failures={"largest_batch": "failed: RuntimeError: x", **out}),
        point("linformer", [0.05, 0.05, 0.05], 42, length=65536, k=128, implementation="triton"),
        point("linformer", [], 41, length=65536, k=256, **slow),
    ]
    setting = {
        "device": "cuda",
        "projected_lengths": [128, 256],
        "dim": 768,
        "heads": 12,
        "precision": "bf16",
        "tokens": 65536,
        "rounds": 3,
        "memory_gib": 16.0,
        "sharing": "layerwise",
    }
    environment = {"gpu": "GPU of a test", "cpu": "CPU", "threads": 2, "torch": "2.15.0"}
    found = Measurement(
        "linformer_table3", {**setting, "lengths": [512, 65536]}, TimingProtocol(rounds=3), environment, complete=True
    )
    found.cells = {cell: cell for each in points for cell in each}
    return found


def cells(table: str) -> dict[tuple[str, str], list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    return {(row[0], row[1]): row[2:] for row in rows[2:]}


def test_time_table_of_the_fixture():
    table = table3_report(fixture(), tables=["forward time"])
    assert cells(table) == {
        ("512", "materialised"): ["400", "3.2 ± 0.1 (paper 1.5)", "2.2 ± 0.9 unstable (paper 1.3)"],
        ("512", "SDPA (cudnn)"): ["100", "0.80 ± 0.00 (paper 1.5)", "0.50 ± 0.22 unstable (paper 1.3)"],
        ("65536", "materialised"): ["OOM", "baseline OOM (paper 20)", "time limit (paper 18)"],
        ("65536", "SDPA (flash)"): ["3000", "120 ± 0 (paper 20)", "time limit (paper 18)"],
    }
    assert "- linformer:sdpa[projected_length=256]: time limit: not done after 60 s (time, forward, batch 2 at 65,536; " in table
    assert "- GPU of a test, torch 2.15.0, 3 rounds. " in table


def test_memory_table_of_the_fixture():
    assert cells(table3_report(fixture(), tables=["forward memory"])) == {
        ("512", "materialised"): ["100", "1.7 (paper 1.7)", "1.5 (paper 1.5)"],
        ("512", "SDPA (flash)"): ["300", "0.57 (paper 1.7)", "0.50 (paper 1.5)"],
        ("65536", "materialised"): ["OOM", "> 42 (paper 60)", "> 41 (paper 52)"],
        ("65536", "SDPA (flash)"): ["10", "4.2 (paper 60)", "4.1 (paper 52)"],
    }


SMALL = ["device=cpu", "lengths=[64]", "projected_lengths=[16,64]", "dim=16", "heads=2", "tokens=128", "rounds=2"]


@pytest.mark.process
def test_the_program_measures_prints_and_resumes(tmp_path, capsys):
    file = tmp_path / "found.json"
    words = [*SMALL, "repeat_seconds=0", f"output={file}"]
    assert run_experiment("linformer_table3", LinformerTable3, words) == 0
    printed = capsys.readouterr().out
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["complete"] is True
    cells = Measurement.from_dict(found).cells
    assert list(dict.fromkeys(cell.role for cell in cells)) == ["materialised", "sdpa", "linformer"]
    largest = {(cell.role, cell.kind): cell.one("largest_batch") or 0 for cell in cells if cell.batch == 1}
    assert all(largest[role, "forward"] > largest[role, "training"] > 0 for role, _ in largest)
    for cell in cells:
        assert not cell.failures
        timed = 2 if cell.batch == 2 else 0
        assert len(cell.all("seconds")) == timed
        assert len(cell.all("backward_seconds")) == (timed if cell.kind == "training" else 0)
    assert table3_report(Measurement.from_dict(found)) == printed.rstrip("\n"), "the file is enough to print the table anew"
    assert printed.count("| materialised |") == 5

    file.write_text(json.dumps({**found, "complete": False}), encoding="utf-8")
    assert run_experiment("linformer_table3", LinformerTable3, words) == 0
    again = capsys.readouterr()
    assert f"found.json holds {len(found['rows'])} rows of this measurement; going on from there" in again.err
    assert again.out == printed, "all its lengths were done"
    assert json.loads(file.read_text(encoding="utf-8"))["complete"] is True
