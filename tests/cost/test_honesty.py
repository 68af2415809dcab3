"""Honesty on the real clock, with tests that do not flake, and the table and settings of the experiment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from attn_zoo.cost.bench import Subject
from attn_zoo.cost.compare import compare
from attn_zoo.cost.honesty import experiment as honesty
from attn_zoo.cost.honesty.experiment import PASSES, STEPS, Passes, Setting, take_turns
from attn_zoo.cost.honesty.table import honesty_table, is_honest, right
from attn_zoo.cost.protocol import TimingProtocol
from attn_zoo.cost.workers import WorkerError

SETTING = Setting(
    subject=Subject("softmax", {}),
    length=16,
    dim=16,
    heads=2,
    repeats=5,
    fresh_every=2,
    smallest_difference=0.02,
    time_limit=60.0,
    protocol=TimingProtocol(rounds=8, most_repeats=3),
)


@pytest.fixture(scope="module")
def taken():
    """Seconds on the real clock, one thread, in one process: 120 rounds of A, A once more, and a tenth more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        passes = Passes(Subject("softmax", {}), 64, 4, 64)
        clocks = {name: lambda count=count: passes.fastest(count, 3, 1) for name, count in STEPS.items()}
        yield take_turns(TimingProtocol(rounds=120), clocks)
    finally:
        torch.set_num_threads(threads)


def test_the_same_twice_ties_on_the_real_clock(taken):
    """Whatever else runs here: the order is shuffled, so at this confidence a false alarm has a chance below one in a million."""
    assert compare(taken["first"], taken["same"], confidence=1 - 1e-6).verdict == "tie"


def test_a_tenth_more_is_found_on_the_real_clock(taken):
    """Fails only where fewer than 72 of 120 rounds see it; were it 4 of 5 rounds that do, with a chance of 1 in 10 million."""
    comparison = compare(taken["first"], taken["slower"])
    assert comparison.verdict == "A faster", comparison.describe()
    assert comparison.low < (PASSES + 1) / PASSES * 1.1, "and not for more than it is"


class Scripted:
    """A worker whose steps take as long as their passes, in ms, and ``same`` three tenths more from the third repeat on."""

    made = 0

    def __init__(self, make: Any, *arguments: Any, environment: Any) -> None:
        self.number = Scripted.made
        Scripted.made += 1

    def ask(self, method: str, passes: int, steps: int, warmup: int, limit: float | None = None) -> float:
        assert method == "fastest"
        slower = 1.3 if self.number == 4 else 1.0  # the second process of the second three
        return 1e-3 * passes * slower

    def stop(self) -> None: ...


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(honesty, "Worker", Scripted)
    monkeypatch.setattr(Scripted, "made", 0)


def test_repeats_are_compared_saved_and_gone_on_with(scripted):
    saved: list[int] = []
    points = honesty.measure(SETTING, tell=lambda line: None, save=lambda points: saved.append(len(points)))
    assert saved == [1, 2, 3, 4, 5] and [p["repeat"] for p in points] == [0, 1, 2, 3, 4]
    assert Scripted.made == 9, "three processes for each two repeats"
    assert [p["same"]["verdict"] for p in points] == ["tie", "tie", "A faster", "A faster", "tie"]
    assert all(p["slower"]["verdict"] == "A faster" for p in points)
    assert points[0]["slower"]["quotient"] == pytest.approx(1.1) and points[0]["seconds"]["first"][1] == pytest.approx(0.01)
    again = honesty.measure(SETTING, tell=lambda line: None, save=lambda points: None, done=points)
    assert again == points and Scripted.made == 9


def test_a_process_that_fails_ends_it(scripted, monkeypatch):
    def fail(self: Scripted, *arguments: Any, limit: float | None = None) -> float:
        raise WorkerError("time limit", "scripted")

    monkeypatch.setattr(Scripted, "ask", fail)
    with pytest.raises(WorkerError, match="scripted"):
        honesty.measure(SETTING, tell=lambda line: None, save=lambda points: None)


def found(verdicts: list[tuple[str, str]]) -> dict[str, Any]:
    points = [
        {
            "repeat": at,
            "seconds": dict.fromkeys(STEPS, (0.001, 0.002, 0.003)),
            "same": {"verdict": same, "quotient": 1.0},
            "slower": {"verdict": slower, "quotient": 1.1},
        }
        for at, (same, slower) in enumerate(verdicts)
    ]
    setting = {"subject": {"attention": "softmax", "implementation": "eager"}, "length": 64, "dim": 64, "heads": 4, "repeats": 100}
    setting |= {"fresh_every": 10, "smallest_difference": 0.02}
    environment = {"cpu": "CPU of a test", "threads": 2, "torch": "2.15.0"}
    protocol = TimingProtocol(rounds=150, most_repeats=3).to_dict()
    return {"complete": True, "setting": setting, "protocol": protocol, "environment": environment, "points": points}


def test_the_table_counts_right_verdicts():
    here = found([("tie", "A faster")] * 95 + [("tie", "tie")] * 4 + [("B faster", "A faster")])
    assert right(here["points"], "same") == 99 and right(here["points"], "slower") == 96
    table = honesty_table(here)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    # Exact binomial intervals (Clopper and Pearson) of 99 and 96 of 100, from tables.
    assert rows[2] == ["the same layer twice", "tie", "99 of 100", "99 % (94.6 to 100.0)", "1.000", "1.000 to 1.000"]
    assert rows[3] == ["one pass in 10 more", "A faster", "96 of 100", "96 % (90.1 to 98.9)", "1.100", "1.100 to 1.100"]
    for words in ("CPU of a test, 2 threads", "2.00 ms", "150 rounds", "3 timed steps", "beyond 2 %"):
        assert words in table
    assert honesty_table({**here, "complete": False, "points": []}).startswith("**Not complete")


def test_honest_is_95_of_100_of_both():
    assert is_honest(found([("tie", "A faster")] * 95 + [("A faster", "tie")] * 5)["points"])
    assert not is_honest(found([("tie", "A faster")] * 94 + [("A faster", "A faster")] * 6)["points"])
    assert not is_honest(found([("tie", "A faster")] * 94 + [("tie", "tie")] * 6)["points"])
    assert not is_honest([])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dim": 10, "heads": 4}, "dim must be divisible by heads"),
        ({"repeats": 0}, "repeats must be at least 1; got 0"),
        ({"fresh_every": 0}, "fresh_every must be at least 1"),
        ({"protocol": TimingProtocol(rounds=5)}, "rounds must be at least 6 for an interval; got 5"),
        ({"smallest_difference": 0.1}, r"smallest_difference must lie from 0 to below 0\.1"),
        ({"time_limit": 0.0}, "time_limit must be above 0"),
        ({"subject": Subject("linformer", {"projected_length": 99})}, "projected_length=99 is not below the 16 keys"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        replace(SETTING, **wrong)
