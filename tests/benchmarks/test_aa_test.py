"""The A/A test with scripted times: verdicts, table and exit statuses."""

from __future__ import annotations

import json
from typing import Any

import aa_test
import pytest
from aa_test import all_right, main, report, right

from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.protocol import TimingProtocol


class Scripted:
    """A worker whose steps take as long as their passes, in ms, and those of ``same`` longer in the processes ``slower``."""

    made: int = 0
    slower: tuple[int, ...] = ()
    asked: list[Any] = []  # noqa: RUF012

    def __init__(self, make: Any, *arguments: Any) -> None:
        self.number = Scripted.made
        Scripted.made += 1

    def ask(self, method: str, passes: int, steps: int, warmup: int, limit: float) -> float:
        assert (method, steps, warmup) == ("fastest", 3, 1)
        Scripted.asked.append(self.number % 3)
        return 1e-3 * passes * (1.3 if self.number in self.slower else 1.0)

    def stop(self) -> None: ...


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(aa_test, "Worker", Scripted)
    for name, value in (("made", 0), ("slower", ()), ("asked", [])):
        monkeypatch.setattr(Scripted, name, value)


TINY = ["--repeats", "12", "--rounds", "8"]


@pytest.mark.parametrize(("slower", "status", "count"), [((), 0, "12 of 12"), ((4,), 1, "10 of 12")])
def test_repeats_are_compared_and_timings_that_cannot_be_believed_end_with_status_1(
    slower, status, count, scripted, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(Scripted, "slower", slower)  # 4 is the second process of the second three
    assert main([*TINY, "--output", str(tmp_path / "h.json")]) == status
    assert Scripted.made == 6, "three processes for each ten repeats"
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| the same layer twice"))
    assert row.split("|")[3].strip() == count
    rounds = [tuple(Scripted.asked[at : at + 3]) for at in range(0, len(Scripted.asked), 3)]
    assert len(rounds) == 12 * 8 and all(sorted(each) == [0, 1, 2] for each in rounds) and len(set(rounds)) > 3
    found = Measurement.from_dict(json.loads((tmp_path / "h.json").read_text(encoding="utf-8")))
    assert found.complete and len(found.cells) == 36 and right(found, "slower") == 12
    by = {(cell.label, cell.group): cell for cell in found.cells}
    assert by["slower", "0"].one("quotient") == pytest.approx(1.1) and by["first", "0"].all("seconds")[1] == pytest.approx(0.01)


def test_bad_input_is_refused(scripted, capsys):
    assert main([*TINY, "--layer", "sofmax"]) == 2
    assert "softmax" in capsys.readouterr().err
    assert main(["--rounds", "5"]) == 2
    assert "at least 6 rounds" in capsys.readouterr().err


BOUNDS = {"tie": (1.0, 0.99, 1.01), "A faster": (1.1, 1.09, 1.11), "B faster": (0.9, 0.89, 0.91)}


def found(verdicts: list[tuple[str, str]]) -> Measurement:
    grid = {"layer": "softmax", "length": 64, "dim": 64, "heads": 4, "repeats": 100, "fresh_every": 10, "smallest_difference": 0.02}
    environment = {"cpu": "CPU of a test", "gpu": None, "threads": 2, "torch": "2.15.0"}
    made = Measurement("aa_test", grid, TimingProtocol(rounds=150, most_repeats=3), environment, complete=True)
    for repeat, (same, slower) in enumerate(verdicts):
        for name, verdict in (("first", None), ("same", same), ("slower", slower)):
            cell = made.of(Cell(name, "forward", 64, group=str(repeat)))
            cell.values["seconds"] = [0.001, 0.002, 0.003]
            if verdict is not None:
                cell.values.update({key: [value] for key, value in zip(("quotient", "low", "high"), BOUNDS[verdict], strict=True)})
    return made


def test_the_table_counts_right_verdicts():
    here = found([("tie", "A faster")] * 95 + [("tie", "tie")] * 4 + [("B faster", "A faster")])
    assert right(here, "same") == 99 and right(here, "slower") == 96
    table = report(here)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    # Exact binomial intervals (Clopper and Pearson) of 99 and 96 of 100, from tables.
    assert rows[2] == ["the same layer twice", "tie", "99 of 100", "99 % (94.6 to 100.0)", "1.000", "1.000 to 1.000"]
    assert rows[3][:5] == ["11 passes against 10", "A faster", "96 of 100", "96 % (90.1 to 98.9)", "1.100"]
    for words in ("CPU of a test, 2 threads", "median 2.00 ms", "repeats of 150 rounds"):
        assert words in table
    nothing = found([])
    nothing.complete = False
    assert report(nothing).startswith("**Not complete")


def test_it_is_passed_by_95_of_100_of_both():
    assert all_right(found([("tie", "A faster")] * 95 + [("A faster", "tie")] * 5))
    assert not all_right(found([("tie", "A faster")] * 94 + [("A faster", "A faster")] * 6))
    assert not all_right(found([("tie", "A faster")] * 94 + [("tie", "tie")] * 6))
    assert not all_right(found([]))
