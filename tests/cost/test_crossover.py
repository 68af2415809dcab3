"""Crossovers: located by hand, intervals that cover, cells that ran out of memory or time, budget, resumption, table and plot."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attn_zoo.cost.bench import Subject
from attn_zoo.cost.crossover import analysis, experiment
from attn_zoo.cost.crossover.analysis import Crossover, baseline, crossover, exponent, last_fall, round_length
from attn_zoo.cost.crossover.experiment import Cell, expected_seconds, stop_slowest
from attn_zoo.cost.crossover.plot import check_plot, plot_crossover, spread_out
from attn_zoo.cost.crossover.setting import Entry, Setting, resolve_setting
from attn_zoo.cost.crossover.table import crossover_table
from attn_zoo.cost.energy import NotMeasured
from attn_zoo.cost.protocol import TimingProtocol
from attn_zoo.cost.workers import WorkerError

needs_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib (extra: plots)")

LINFORMER = Entry("mechanism", "linformer projected_length=8", Subject("linformer", {"projected_length": 8}))

SETTING = Setting(
    device="cpu",
    mechanisms=(LINFORMER,),
    lengths=(8, 16, 32),
    dim=16,
    heads=2,
    precision="fp32",
    seconds=60.0,
    time_limit=30.0,
    protocol=TimingProtocol(rounds=7, seconds=0.0),
)


def point(
    label: str, length: int, seconds: Any = (), *, role: str = "mechanism", kind: str = "forward", **more: Any
) -> dict[str, Any]:
    found = {"label": label, "role": role, "length": length, "kind": kind, "seconds": list(seconds), "joules": [], "bytes": None}
    return {**found, "failures": {}, "subject": {"backend": None}, **more}


def pair(length: int, ours: Any, theirs: Any, **more: Any) -> list[dict[str, Any]]:
    return [point("ours", length, ours, **more), point("softmax", length, theirs, role="sdpa", **more)]


def time_crossover(points: list[dict[str, Any]]) -> Crossover:
    found = crossover(points, "ours", "sdpa", "forward", "time")
    assert found is not None
    return found


def test_a_crossover_by_hand():
    """Quotients 2 at 100 and 1/2 at 400: half way in log-log is 200."""
    points = pair(100, [2.0] * 9, [1.0] * 9) + pair(400, [0.5] * 9, [1.0] * 9)
    found = time_crossover(points)
    assert [found.at, found.low, found.high] == pytest.approx([200, 200, 200])
    assert (found.shortest, found.longest, found.exact) == (100, 400, False)
    rounds = [1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 4.0, 4.0]  # median 2, second smallest 1, second largest 4
    found = time_crossover(pair(100, rounds, [1.0] * 9) + pair(400, [0.5] * 9, [1.0] * 9))
    assert found.at == pytest.approx(200)
    assert found.low == pytest.approx(100), "where the lower bound, which is 1 at 100, leaves 1"
    assert found.high == pytest.approx(100 * 4 ** (2 / 3)), "log 4 to log 1/2: two thirds of the way"
    assert found.describe() == "200 (100 to 250)"


def test_rounds_are_paired():
    """A round that slows both down says nothing of the quotient."""
    slow = [1.0, 50.0, 2.0, 9.0, 1.0, 3.0, 7.0]
    found = time_crossover(pair(100, [2 * s for s in slow], slow) + pair(400, [0.5 * s for s in slow], slow))
    assert found.low == pytest.approx(200) == found.high


@pytest.mark.parametrize(
    ("logs", "at"),
    [
        ([1.0, 1.0, -1.0], 200 * 2**0.5),
        ([3.0, -1.0, -2.0], 100 * 2**0.75),
        ([-1.0, -1.0, -1.0], 0.0),
        ([-1.0, -1.0, 0.0], math.inf),
        ([1.0, -1.0, 1.0], math.inf),
        ([-1.0, 1.0, -1.0], 200 * 2**0.5),
        ([0.0, -1.0, -1.0], 100.0),
        ([1.0, math.inf, -1.0], 400.0),
        ([1.0, -math.inf, -math.inf], 200.0),
    ],
)
def test_the_last_fall_counts(logs, at):
    assert last_fall([100, 200, 400], logs) == pytest.approx(at)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Crossover(0.0, 0.0, 0.0, 512, 16384, False), "from 512 on"),
        (Crossover(0.0, 0.0, 640.0, 512, 16384, False), "≤ 512 (≤ 512 to 640)"),
        (Crossover(math.inf, math.inf, math.inf, 512, 16384, False), "never up to 16,384"),
        (Crossover(math.inf, 9411.0, math.inf, 512, 16384, False), "> 16,384 (9,400 to > 16,384)"),
        (Crossover(1234.0, 987.0, 1999.0, 512, 16384, False), "1,230 (990 to 2,000)"),
        (Crossover(1234.0, 1234.0, 1234.0, 512, 16384, True), "1,230"),
    ],
)
def test_crossovers_in_words(found, words):
    assert found.describe() == words


def test_lengths_are_rounded_to_what_is_known():
    assert [round_length(n) for n in (7.2, 96.0, 104.0, 196.4, 204.0, 1049.0, 1996.0, 7777.0)] == [
        7,
        96,
        104,
        196,
        200,
        1050,
        2000,
        7800,
    ]


def test_the_interval_covers_the_true_crossover():
    """Costs n^1 and n^2/1500 with 8 % noise on each timing and rounds that are slow altogether: at 1,500 they meet."""
    rng = np.random.default_rng(5)
    lengths, covered = (256, 512, 1024, 2048, 4096), 0
    for _ in range(150):
        points = []
        for n in lengths:
            common, noise = rng.uniform(1, 3, 12), rng.lognormal(0, 0.08, (2, 12))
            points += pair(n, n * common * noise[0], n**2 / 1500 * common * noise[1])
        found = time_crossover(points)
        covered += found.low <= 1500 <= found.high
    assert covered >= 0.95 * 150


def test_who_runs_out_of_memory_has_lost():
    lost: dict[str, Any] = {"failures": {"time": "OOM: scripted", "memory": "OOM: scripted"}}
    ran = [1.0] * 6
    both = pair(100, [2.0] * 6, ran)
    theirs = [point("ours", 400, ran), point("softmax", 400, role="sdpa", **lost)]
    assert time_crossover(both + theirs).at == 400, "somewhere up to there; where, nobody measured"
    ours = [point("ours", 400, **lost), point("softmax", 400, ran, role="sdpa")]
    assert time_crossover(pair(100, ran, [2.0] * 6) + ours).at == math.inf
    neither = [point("ours", 400, **lost), point("softmax", 400, role="sdpa", **lost)]
    assert crossover(both + neither, "ours", "sdpa", "forward", "time") is None, "one length is left"


def test_what_was_stopped_or_has_too_few_rounds_is_not_compared():
    points = pair(100, [2.0] * 6, [1.0] * 6) + pair(200, [0.5] * 6, [1.0] * 6)
    stopped = point("softmax", 400, role="sdpa", failures={"time": "time limit: scripted"})
    assert time_crossover([*points, point("ours", 400, [1.0] * 6), stopped]).longest == 200
    assert time_crossover(points + pair(400, [0.5] * 6, [1.0] * 5)).longest == 200
    assert time_crossover(points + pair(400, [0.5] * 6, [1.0] * 6)).longest == 400


def test_memory_is_exact_and_energy_has_rounds():
    points = []
    for n, ours, theirs in ((100, 4, 2), (400, 8, 16)):
        points += [{**p, "bytes": cost, "joules": [cost] * 6} for p, cost in zip(pair(n, (), ()), (ours, theirs), strict=True)]
    memory, energy = (crossover(points, "ours", "sdpa", "forward", quantity) for quantity in ("memory", "energy"))
    assert memory is not None and memory.at == pytest.approx(200) and memory.describe() == "200"
    assert energy is not None and energy.at == pytest.approx(200) and energy.describe() == "200 (200 to 200)"
    assert crossover(points, "ours", "sdpa", "forward", "time") is None


def test_the_best_back_end_is_taken_at_each_length():
    points = [
        point(f"softmax ({name})", n, [seconds] * 6, role="sdpa", subject={"backend": name})
        for name, both in (("flash", (3.0, 4.0)), ("efficient", (2.0, 5.0)))
        for n, seconds in zip((100, 200), both, strict=True)
    ] + [point("softmax (cudnn)", n, role="sdpa", failures={"time": "failed: no kernel"}) for n in (100, 200)]
    assert [p["subject"]["backend"] for p in baseline(points, "sdpa", "forward", "time")] == ["efficient", "flash"]


def test_exponents_are_of_the_longest_lengths():
    points = [point("ours", n, [1.0 if n < 100 else n**2.0]) for n in (10, 20, 100, 200, 400, 800)]
    assert exponent(points, "time") == pytest.approx(2.0) and analysis.FITTED_LENGTHS == 4
    assert exponent(points[:2], "time") is None


class Scripted:
    """A worker: a step of n tokens takes n ms, of softmax n²/16, so they meet at 16, and holds as many bytes; 32 is too long."""

    asked: list[tuple[str, str, int]] = []  # noqa: RUF012

    def __init__(self, make: Any, *, environment: Any, bounded: bool) -> None:
        self.softmax = make.args[0].args[0].attention == "softmax"

    def ask(self, method: str, kind: str, batch: int, length: int, limit: float) -> Any:
        Scripted.asked.append((method, kind, length))
        cost = length**2 / 16 if self.softmax else float(length)
        if length == 32 and self.softmax and kind == "training":
            raise WorkerError("OOM", "scripted")
        return {"held": 0, "peak": int(cost), "parts": (0.25e-3 * cost, 0.75e-3 * cost), "joules": cost}[method]

    def stop(self) -> None: ...


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(experiment, "Worker", Scripted)
    monkeypatch.setattr(Scripted, "asked", [])


def test_lengths_are_measured_saved_and_gone_on_with(scripted):
    saved: list[list[dict[str, Any]]] = []
    points = experiment.measure(SETTING, tell=lambda line: None, save=lambda points: saved.append(list(points)))
    assert [sorted({p["length"] for p in points}) for points in saved] == [[8], [8, 16], [8, 16, 32]]
    assert len(points) == 3 * 3 * 2 and all(p["protocol"] == SETTING.protocol.digest() for p in points)
    refused = [p for p in points if p["failures"].get("time", "").startswith("refused: ")]
    assert {(p["label"], p["length"]) for p in refused} == {(LINFORMER.label, 8)}
    lost = [p for p in points if p["failures"].get("time", "").startswith("OOM: ")]
    assert {(p["role"], p["kind"], p["length"]) for p in lost} == {(r, "training", 32) for r in ("materialised", "sdpa")}
    assert all(len(p["seconds"]) == 7 for p in points if not p["failures"]) and not any(p["joules"] for p in points)
    for role in ("materialised", "sdpa"):
        found = crossover(points, LINFORMER.label, role, "forward", "time")
        assert found is not None and found.describe() == "16 (16 to 16)"
        found = crossover(points, LINFORMER.label, role, "training", "memory")
        assert found is not None and found.at == 32
    Scripted.asked.clear()
    again = experiment.measure(SETTING, tell=lambda line: None, save=lambda points: None, done=saved[1])
    assert again == points and {length for method, _, length in Scripted.asked if method == "parts"} == {32}


def test_energy_is_taken_in_as_many_rounds_as_an_interval_needs(scripted, monkeypatch):
    class Meter:
        what = "scripted"

    monkeypatch.setattr(experiment, "energy_meter", lambda device: Meter())
    points = experiment.measure(SETTING, tell=lambda line: None, save=lambda points: None)
    assert {len(p["joules"]) for p in points if not p["failures"]} == {6}
    monkeypatch.setattr(experiment, "energy_meter", lambda device: NotMeasured("none here"))
    assert experiment.describe_energy("cpu") == {"measured": False, "reason": "none here"}


def test_without_time_nothing_is_begun_and_it_is_said(scripted, monkeypatch):
    clock = iter(range(0, 10**6, 25))
    monkeypatch.setattr("attn_zoo.cost.crossover.experiment.time.monotonic", lambda: float(next(clock)))
    points = experiment.measure(SETTING, tell=lambda line: None, save=lambda points: None)
    late = [p for p in points if p["length"] == 32]
    assert len(late) == 6 and all(p["failures"]["time"].startswith("time limit: ") for p in late), "its time is over"


def cell(step_seconds: float, failures: dict[str, str] | None = None) -> Cell:
    made = Cell(SETTING, LINFORMER, "forward", 16, worker=None)  # type: ignore[arg-type]
    made.step_seconds, made.failures = step_seconds, dict(failures or {})
    return made


def test_the_slowest_are_stopped_first():
    """Six rounds of a step to warm up and one to time: 12 s a second of a step."""
    cells = [cell(1.0), cell(4.0), cell(2.0), cell(9.0, {"time": "OOM: before"})]
    stop_slowest(cells, 12 * 3.5)
    assert [c.failures.get("time", "").partition(":")[0] for c in cells] == ["", "time limit", "", "OOM"]
    assert cells[1].failures["time"] == "time limit: a step takes about 4 s, so 6 rounds need 84 s, of 42 s left"
    stop_slowest(cells, 12 * 3.0)
    assert "time" not in cells[2].failures
    stop_slowest(cells, -1.0)
    assert all("time" in c.failures for c in cells)


@pytest.mark.parametrize(
    ("known", "expected"),
    [({}, 0.0), ({100: 2.0}, 4.0), ({50: 1.0, 100: 4.0}, 16.0), ({50: 1.0, 100: 9.0}, 36.0), ({50: 3.0, 100: 2.0}, 4.0)],
)
def test_growth_goes_on_as_it_was_between_linear_and_quadratic(known, expected):
    earlier = [point("ours", n, [seconds]) for n, seconds in known.items()] + [point("ours", 400, [99.0])]
    assert expected_seconds(earlier, "ours", "forward", 200) == pytest.approx(expected)
    assert expected_seconds(earlier, "ours", "training", 200) == 0.0


def test_materialised_softmax_is_refused_by_arithmetic_where_it_cannot_fit(monkeypatch):
    monkeypatch.setattr(experiment, "_device_memory", lambda device: 2 * 2 * 16**2 * 4 - 1)
    entry = SETTING.entries()[0]
    made = Cell(SETTING, entry, "forward", 16, worker=None)  # type: ignore[arg-type]
    made.weigh([], 60.0)
    assert made.failures["time"] == made.failures["memory"] == "OOM: by arithmetic at least 4096 bytes, of 4095"


def test_a_real_measurement_of_two_lengths():
    small = replace(SETTING, lengths=(16, 32), seconds=600.0, time_limit=300.0, protocol=replace(SETTING.protocol, rounds=6))
    points = experiment.measure(small, tell=lambda line: None, save=lambda points: None)
    assert not any(p["failures"] for p in points)
    assert all(len(p["seconds"]) == 6 and min(p["seconds"]) > 0 and p["bytes"] > 16 * 16 * 4 for p in points)
    again = experiment.measure(small, tell=lambda line: None, save=lambda points: None)
    assert [p["bytes"] for p in again] == [p["bytes"] for p in points], "memory has no noise"


def found(points: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    environment = {"cpu": "CPU of a test", "threads": 2, "gpu": None, "torch": "2.15.0"}
    energy = {"measured": False, "reason": "a test has no meter"}
    return {
        "complete": True,
        "setting": SETTING.to_dict(),
        "protocol": SETTING.protocol.to_dict(),
        "energy": energy,
        "environment": environment,
        "points": points,
        **more,
    }


@pytest.fixture
def scripted_points(scripted) -> list[dict[str, Any]]:
    return experiment.measure(SETTING, tell=lambda line: None, save=lambda points: None)


def test_the_table(scripted_points):
    table = crossover_table(found(scripted_points))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    assert rows[0][2:] == ["time, forward", "time, forward + backward", "memory, forward", "memory, forward + backward"]
    assert rows[2] == [LINFORMER.label, "materialised softmax", "16 (16 to 16)", "32 (32 to 32)", "16", "32"]
    assert rows[3][1] == "SDPA"
    assert "- softmax (sdpa): OOM: scripted (time, forward + backward at 32; memory, forward + backward at 32)" in table
    for words in (
        "Energy: not measured, a test has no meter.",
        "CPU of a test, 2 threads",
        SETTING.protocol.digest(),
        " 7 rounds were taken",
    ):
        assert words in table
    measured = crossover_table(found(scripted_points, energy={"measured": True, "by": "scripted"}))
    assert "energy, forward" in measured and "not measured" in measured
    assert crossover_table(found(scripted_points, complete=False)).startswith("**Not complete")


def test_what_there_was_no_time_for_is_one_line_a_layer():
    stopped = [
        point("ours", n, kind=kind, failures={"time": f"time limit: {n}"}) for n in (8, 16) for kind in ("forward", "training")
    ]
    said = "- ours: no time left (time, forward at 8, 16; time, forward + backward at 8, 16)"
    assert said in crossover_table(found(stopped))


@needs_matplotlib
def test_the_plot_is_the_same_file_each_time_and_shows_every_layer(scripted_points, tmp_path):
    for name in ("one.svg", "two.svg", "one.png"):
        plot_crossover(found(scripted_points), tmp_path / name)
    svg = (tmp_path / "one.svg").read_bytes()
    assert svg == (tmp_path / "two.svg").read_bytes() and b"<dc:date>" not in svg
    text = svg.decode()
    for words in ("linformer", "SDPA", "materialised softmax", "Time, forward + backward", "Memory, forward", "CPU of a test"):
        assert f"<!-- {words}" in text, words
    assert "Energy" not in text, "which was not measured"
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="nothing was measured"):
        plot_crossover(found([]), tmp_path / "none.svg")


def test_a_plot_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"plot must end in \.svg or \.png; got .*\.pdf"):
        check_plot(tmp_path / "x.pdf")
    with pytest.raises(ValueError, match="a folder that exists"):
        check_plot(tmp_path / "no" / "x.svg")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'attn-zoo\[plots\]'"):
        check_plot(tmp_path / "x.svg")


@pytest.mark.parametrize(
    ("heights", "placed"),
    [([0.5, 0.1], [0.5, 0.1]), ([0.5, 0.5], [0.45, 0.55]), ([0.0, 0.02], [0.0, 0.1]), ([0.3, 0.32, 0.9], [0.26, 0.36, 0.9])],
)
def test_names_keep_apart_in_their_order(heights, placed):
    assert spread_out(heights, 0.1) == pytest.approx(placed)


GIVEN: dict[str, Any] = {
    "device": "cpu",
    "lengths": None,
    "dim": 16,
    "heads": 2,
    "precision": None,
    "rounds": 6,
    "repeat_seconds": 0.0,
    "energy_seconds": 0.0,
    "seconds": 1.0,
    "time_limit": 1.0,
    "seed": 1,
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"device": "tpu"}, "device is auto, cpu, or cuda"),
        ({"lengths": [64]}, r"at least two different whole numbers of at least 1; got \[64\]"),
        ({"lengths": [64, 64]}, "at least two different"),
        ({"rounds": 5}, "rounds must be at least 6 for an interval; got 5"),
        ({"heads": 3}, "dim must be divisible by heads"),
        ({"seconds": 0.0}, "seconds and time_limit must be above 0"),
        ({"precision": "int8"}, "precision is one of"),
    ],
)
def test_wrong_settings_are_refused(wrong, message):
    assert resolve_setting(GIVEN, (LINFORMER,)).lengths[0] == 256
    with pytest.raises(ValueError, match=message):
        resolve_setting({**GIVEN, **wrong}, (LINFORMER,))
