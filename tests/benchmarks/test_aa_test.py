"""The A/A test with scripted times: verdicts, table and exit statuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aa_test import AATest, right

from attn_zoo.bench import session
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.bench.session import Session
from attn_zoo.cli.measure import run_experiment

GIVEN: dict[str, Any] = {"length": 16, "dim": 16, "heads": 2, "repeats": 5, "rounds": 8, "fresh_every": 2}


class Scripted:
    """A worker whose steps take as long as their passes, in ms, and ``same`` three tenths more from the third repeat on."""

    made = 0

    def __init__(self, make: Any, *arguments: Any, environment: Any, bounded: bool) -> None:
        self.number = Scripted.made
        Scripted.made += 1

    def ask(self, method: str, passes: int, steps: int, warmup: int, limit: float | None = None) -> float:
        assert method == "fastest"
        slower = 1.3 if self.number == 4 else 1.0  # the second process of the second three
        return 1e-3 * passes * slower

    def stop(self) -> None: ...


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(session, "Worker", Scripted)
    monkeypatch.setattr(Scripted, "made", 0)


def measured(found: Measurement | None = None, saved: list[dict[str, Any]] | None = None) -> Measurement:
    grid = AATest(**GIVEN)
    made = Measurement("aa_test", grid.identity(), grid.protocol, {}) if found is None else found
    kept = [] if saved is None else saved
    Session(grid, made, save=lambda at: kept.append(at.to_dict())).run()
    return made


def verdicts(found: Measurement, name: str) -> list[bool]:
    """Return True if each repeat of a kind came to the right verdict."""
    return [
        right(Measurement("aa_test", found.grid, found.protocol, {}, cells={cell: figures}), name) == 1
        for cell, figures in found.cells.items()
        if cell.label == name
    ]


def test_repeats_are_compared_saved_and_gone_on_with(scripted):
    saved: list[dict[str, Any]] = []
    found = measured(saved=saved)
    assert [len(at["cells"]) for at in saved] == [3, 6, 9, 12, 15], "whole repeats only"
    assert Scripted.made == 9, "three processes for each two repeats"
    assert verdicts(found, "same") == [True, True, False, False, True]
    assert verdicts(found, "slower") == [True] * 5
    by = {(cell.label, cell.group): figures for cell, figures in found.cells.items()}
    assert by["slower", "0"].one("quotient") == pytest.approx(1.1) and by["first", "0"].all("seconds")[1] == pytest.approx(0.01)
    assert measured(Measurement.from_dict(saved[-1])).to_dict() == found.to_dict() and Scripted.made == 9
    Scripted.made = 100
    assert len(measured(Measurement.from_dict(saved[2])).cells) == 15 and Scripted.made == 106


BOUNDS = {"tie": (1.0, 0.99, 1.01), "A faster": (1.1, 1.09, 1.11), "B faster": (0.9, 0.89, 0.91)}


def found(verdicts: list[tuple[str, str]]) -> Measurement:
    grid = {"layer": "softmax", "length": 64, "dim": 64, "heads": 4, "repeats": 100, "fresh_every": 10, "smallest_difference": 0.02}
    environment = {"cpu": "CPU of a test", "gpu": None, "threads": 2, "torch": "2.15.0"}
    made = Measurement("aa_test", grid, TimingProtocol(rounds=150, most_repeats=3), environment, complete=True)
    for repeat, (same, slower) in enumerate(verdicts):
        for name, verdict in (("first", None), ("same", same), ("slower", slower)):
            figures = made.of(Cell(name, "forward", 64, group=str(repeat)))
            figures.values = {"seconds": [0.001, 0.002, 0.003]}
            if verdict is not None:
                figures.values |= {key: [value] for key, value in zip(("quotient", "low", "high"), BOUNDS[verdict], strict=True)}
    return made


def test_the_table_counts_right_verdicts():
    here = found([("tie", "A faster")] * 95 + [("tie", "tie")] * 4 + [("B faster", "A faster")])
    assert right(here, "same") == 99 and right(here, "slower") == 96
    table = AATest.report(here)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    # Exact binomial intervals (Clopper and Pearson) of 99 and 96 of 100, from tables.
    assert rows[2] == ["the same layer twice", "tie", "99 of 100", "99 % (94.6 to 100.0)", "1.000", "1.000 to 1.000"]
    assert rows[3][:5] == ["11 passes against 10", "A faster", "96 of 100", "96 % (90.1 to 98.9)", "1.100"]
    for words in ("CPU of a test, 2 threads", "median 2.00 ms", "repeats of 150 rounds"):
        assert words in table
    nothing = found([])
    nothing.complete = False
    assert AATest.report(nothing).startswith("**Not complete")


def test_it_is_passed_by_95_of_100_of_both():
    assert AATest.succeeded(found([("tie", "A faster")] * 95 + [("A faster", "tie")] * 5))
    assert not AATest.succeeded(found([("tie", "A faster")] * 94 + [("A faster", "A faster")] * 6))
    assert not AATest.succeeded(found([("tie", "A faster")] * 94 + [("tie", "tie")] * 6))
    assert not AATest.succeeded(found([]))


TINY = ["length=16", "dim=8", "heads=2", "repeats=2", "rounds=6"]


@pytest.mark.parametrize(("slower", "status", "count"), [(1.0, 0, "2 of 2"), (1.3, 1, "0 of 2")])
def test_timings_that_cannot_be_believed_end_with_status_1(slower, status, count, scripted, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        Scripted, "ask", lambda self, method, passes, *rest, limit: passes * (slower if self.number % 3 == 1 else 1.0)
    )
    assert run_experiment("aa_test", AATest, [*TINY, f"output={tmp_path / 'h.json'}"]) == status
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| the same layer twice"))
    assert row.split("|")[3].strip() == count
    assert json.loads((tmp_path / "h.json").read_text(encoding="utf-8"))["complete"]
