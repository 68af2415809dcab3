"""Growth over lengths: processes and memory, the exponent, and files of earlier versions."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest
from committed import measured

from attn_zoo.bench.experiments.growth import Growth
from attn_zoo.bench.measurement import Measurement
from attn_zoo.bench.session import Session
from attn_zoo.bench.workers import Worker


def grid(**changes) -> Growth:
    return Growth(**{"attention": ["softmax:eager", "linear"], "lengths": [16, 32], "dim": 8, "heads": 2, **changes})


@pytest.mark.process
@pytest.mark.parametrize(("available", "most"), [(0.9, 2), (0.1, 1)])
def test_with_little_memory_one_worker_makes_room_for_the_next(available, most, monkeypatch: pytest.MonkeyPatch):
    alive: set[Worker] = set()
    most_alive = 0
    spawn, stop = Worker._spawn, Worker.stop

    def started(self: Worker) -> None:
        nonlocal most_alive
        alive.add(self)
        most_alive = max(most_alive, len(alive))
        spawn(self)

    def ended(self: Worker) -> None:
        alive.remove(self)
        stop(self)

    monkeypatch.setattr(Worker, "_spawn", started)
    monkeypatch.setattr(Worker, "stop", ended)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available * 2**34, total=2**34))
    made = grid(attention=["linear", "softmax:eager"], rounds=2)
    found = Measurement("growth", vars(made), made.protocol, {})
    Session(made, found).run()
    assert most_alive == most and not alive
    assert len(found.cells) == 8 and all(len(figures.all("seconds")) == 2 for figures in found.cells.values())


@pytest.mark.parametrize(("lengths", "exponent"), [([16, 32], "-"), ([16, 32, 64], "1.00")])
def test_an_exponent_needs_three_lengths(lengths, exponent):
    made = grid(lengths=lengths)
    found = Measurement(
        "growth", vars(made), made.protocol, {"cpu": "this", "gpu": None, "threads": 2, "torch": "2"}, complete=True
    )
    for cell in made.groups()[0]:
        found.of(cell).values = {"seconds": [cell.length * 1e-3] * 3, "peak_bytes": [2**20]}
    report = Growth.report(found)
    rows = [line.split("|")[-3].strip() for line in report.splitlines() if line.startswith("|")]
    assert rows[0] == "exponent" and rows[2:] == [exponent] * 4
    assert made.rounds == 5 and "torch 2, 3 rounds." in report, "a time limit left out two rounds"
    found.of(made.groups()[0][0]).values["seconds"] *= 2
    assert "torch 2, 3 to 6 rounds." in Growth.report(found)
    for figures in found.cells.values():
        figures.values["seconds"] = [1e-3]
    assert "torch 2, 1 round." in Growth.report(found)


def test_rows_of_a_file_with_several_numbers_of_heads_are_named():
    table = Growth.report(Measurement.from_dict(measured("curves_layers")))
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("|")]
    assert rows[-4:] == ["softmax, heads=16"] * 2 + ["linear, heads=16"] * 2
