"""``experiment=crossover``: cells that ran out of memory or time, budget, resumption, refusals, table, plot and command."""

from __future__ import annotations

import itertools
import json
import math
import time
from functools import partial
from typing import Any

import pytest
from patience import HANG

from attn_zoo.bench import crossover_analysis as analysis
from attn_zoo.bench import session, timed
from attn_zoo.bench.crossover_analysis import crossover
from attn_zoo.bench.crossover_plot import plot_crossover
from attn_zoo.bench.experiments.crossover import Crossover as CrossoverGrid
from attn_zoo.bench.measurement import Cell, Figures, Measurement
from attn_zoo.bench.session import Session, expected_seconds
from attn_zoo.bench.workers import WorkerError
from attn_zoo.cli import main
from attn_zoo.count.rigs import Subject

GIVEN: dict[str, Any] = {
    "device": "cpu",
    "attention": ["linformer[projected_length=8]"],
    "lengths": [8, 16, 32],
    "dim": 16,
    "heads": 2,
    "rounds": 7,
    "repeat_seconds": 0.0,
    "time_limit": 30.0,
    "seconds": 60.0,
}
LINFORMER = "linformer[projected_length=8]"


def grid_of(**changes: Any) -> CrossoverGrid:
    return CrossoverGrid(**{**GIVEN, **changes})


class Scripted:
    """A worker: a step of n tokens takes n ms, of softmax n²/16, so they meet at 16, and holds as many bytes; 32 is too long."""

    asked: list[tuple[str, str, int]] = []  # noqa: RUF012

    def __init__(self, make: Any, build: Any, *rest: Any, environment: Any, bounded: bool) -> None:
        self.softmax = isinstance(build, partial) and build.args[0].attention == "softmax"  # else it may time matrix products

    def ask(self, method: str, kind: str, batch: int, length: int, limit: float | None) -> Any:
        Scripted.asked.append((method, kind, length))
        cost = length**2 / 16 if self.softmax else float(length)
        if length == 32 and self.softmax and kind == "training":
            raise WorkerError("OOM", "scripted")
        return {"held": 0, "peak": int(cost), "parts": (0.25e-3 * cost, 0.75e-3 * cost)}[method]

    def stop(self) -> None: ...


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(session, "Worker", Scripted)
    monkeypatch.setattr(Scripted, "asked", [])


def empty(grid: CrossoverGrid, **more: Any) -> Measurement:
    environment = {"cpu": "CPU of a test", "threads": 2, "gpu": None, "torch": "2.15.0"}
    return Measurement("crossover", grid.identity(), grid.protocol, environment, **{"complete": True, **more})


def measured(
    found: Measurement | None = None, saved: list[dict[str, Any]] | None = None, *, seconds: float = HANG, **changes: Any
) -> Measurement:
    """A measurement, with what was saved on the way as it is read back."""
    grid = grid_of(**changes)
    made = empty(grid) if found is None else found
    kept = [] if saved is None else saved
    Session(grid, made, save=lambda at: kept.append(json.loads(json.dumps(at.to_dict()))), ends=time.monotonic() + seconds).run()
    return made


def test_lengths_are_measured_saved_and_gone_on_with(scripted):
    saved: list[dict[str, Any]] = []
    found = measured(saved=saved)
    cells = list(found.cells)
    assert [cell.length for cell in cells] == sorted(cell.length for cell in cells) and len(cells) == 3 * 3 * 2
    points = found.cells.values()
    refused = [p for p in points if p.failures.get("seconds", "").startswith("refused: ")]
    assert {(p.cell.label, p.cell.length) for p in refused} == {(LINFORMER, 8)}
    lost = [p.cell for p in points if p.failures.get("seconds", "").startswith("OOM: ")]
    assert {(c.role, c.kind, c.length) for c in lost} == {(r, "training", 32) for r in ("materialised", "sdpa")}
    assert all(len(p.all("seconds")) == 7 for p in points if not p.failures)
    for role in ("materialised", "sdpa"):
        at = crossover(list(points), LINFORMER, role, "forward", "time")
        assert at is not None and at.describe() == "16 (16 to 16)"
        at = crossover(list(points), LINFORMER, role, "training", "memory")
        assert at is not None and at.at == 32
    for at_moment in (0, len(saved) // 2, len(saved) - 2):
        Scripted.asked.clear()
        again = measured(Measurement.from_dict(saved[at_moment]))
        assert again.to_dict() == found.to_dict()
        timings = [asked for asked in Scripted.asked if asked[0] == "parts"]
        rows = [row for row in saved[at_moment]["rows"] if row["quantity"] == "seconds" and "value" in row]
        assert len(timings) == 7 * 14 - len(rows), "what has its row is not measured again"


def test_without_time_nothing_is_begun_and_it_is_said_and_measured_later(scripted, monkeypatch):
    grid = grid_of()
    found = empty(grid)
    Session(grid, found, ends=time.monotonic() - 1.0).run()
    assert not Scripted.asked and len(found.cells) == 18
    whys = [p.failures["seconds"] for p in found.cells.values()]
    assert {why.partition(":")[0] for why in whys} == {"no time left", "refused"}
    later = empty(grid)
    later.take_over(found)
    assert [p.cell.label for p in later.cells.values() if p.failures] == [LINFORMER] * 2, "what is refused stays refused"
    assert measured(later).to_dict() == measured().to_dict()


@pytest.mark.parametrize(("now", "kept"), [(1.0, ["time limit"]), (2.0, ["time limit"]), (3.0, [])])
def test_a_higher_limit_of_a_request_measures_again_what_took_longer_than_the_earlier_one(now, kept):
    cell, grid = Cell("softmax", "forward", 16), grid_of()
    earlier, later = (Measurement("crossover", {"time_limit": limit}, grid.protocol, {}) for limit in (2.0, now))
    earlier.of(cell).failures = {"seconds": "time limit: the request was not done after 2 s"}
    later.take_over(earlier)
    assert [why.partition(":")[0] for why in later.of(cell).failures.values()] == kept


def test_softmax_is_not_compared_with_itself(scripted):
    rows = ["softmax", "softmax:sdpa", "linformer[projected_length=8]"]
    found = measured(attention=rows)
    assert {cell.label for cell in found.cells} == {"softmax:eager", "softmax:sdpa", LINFORMER}
    with pytest.raises(ValueError, match="attention= must name a mechanism other than softmax"):
        grid_of(attention=["softmax"])
    itself = [Figures(Cell("softmax", "forward", n, subject=Subject("softmax", {}))) for n in (8, 16)]
    assert analysis.compared([*itself, *found.cells.values()]) == [LINFORMER], "also in a file that was written before"


def test_no_request_outlives_the_time(scripted, monkeypatch):
    limits: list[float] = []
    real = Scripted.ask

    def ask(self: Scripted, *asked: Any, limit: float) -> Any:
        limits.append(limit)
        return real(self, *asked, limit=limit)  # type: ignore[misc]

    monkeypatch.setattr(Scripted, "ask", ask)
    grid = grid_of(time_limit=10 * HANG)
    Session(grid, empty(grid), ends=time.monotonic() + HANG).run()
    assert limits and max(limits) <= HANG
    assert all(later <= earlier for earlier, later in itertools.pairwise(limits)), "each gets what is left then"


def stopped(left: float, *steps: float) -> list[str]:
    """What failed of cells whose steps take so long: six rounds of a step to warm up and one to time are 12 s a second."""
    grid = grid_of()
    found = empty(grid)
    made = Session(grid, found, ends=math.inf)
    cells = [Cell(f"cell {at}", "forward", 16) for at in range(len(steps))]
    made._steps = dict(zip(cells, steps, strict=True))
    made.left = lambda: left  # type: ignore[method-assign]
    made._stop_slowest(cells)
    return [found.of(cell).failures.get("seconds", "") for cell in cells]


def test_the_slowest_are_stopped_first():
    whys = stopped(12 * 3.5, 1.0, 4.0, 2.0)
    assert whys == ["", "no time left: a step takes about 4 s, so 84 s are needed, and 42 s are left", ""]
    assert stopped(12 * 3.0, 1.0, 2.0) == ["", ""]
    assert all(stopped(-1.0, 1.0, 2.0))


@pytest.mark.parametrize(
    ("known", "expected"),
    [({}, 0.0), ({100: 2.0}, 4.0), ({50: 1.0, 100: 4.0}, 16.0), ({50: 1.0, 100: 9.0}, 36.0), ({50: 3.0, 100: 2.0}, 4.0)],
)
def test_growth_goes_on_as_it_was_between_linear_and_quadratic(known, expected):
    steps = {Cell("ours", "forward", n): seconds for n, seconds in {**known, 400: 99.0}.items()}
    assert expected_seconds(steps, Cell("ours", "forward", 200)) == pytest.approx(expected)
    assert expected_seconds(steps, Cell("ours", "training", 200)) == 0.0
    assert expected_seconds(steps, Cell("ours", "forward", 200, group="others")) == 0.0


def test_growth_is_of_a_sequence_whatever_the_batches():
    steps = {Cell("ours", "forward", 100, batch=4): 2.0}
    assert expected_seconds(steps, Cell("ours", "forward", 200, batch=2)) == pytest.approx(2.0)


def test_materialised_softmax_is_refused_by_arithmetic_where_it_cannot_fit(monkeypatch):
    monkeypatch.setattr(timed, "device_memory", lambda device: 2 * 2 * 16**2 * 4 - 1)
    cell = next(cell for cell in grid_of().groups()[1] if cell.role == "materialised")
    assert (
        grid_of().refusal(cell) == "OOM: a step needs at least 4096 bytes, as computed from its sizes, but only 4095 are available"
    )


@pytest.mark.exhaustive
def test_a_real_measurement_of_two_lengths():
    small: dict[str, Any] = {"lengths": [16, 32], "rounds": 6, "time_limit": HANG, "seconds": 10 * HANG}
    found, again = measured(**small), measured(**small)
    assert [p.failures for p in found.cells.values() if p.failures] == []
    assert all(len(p.all("seconds")) == 6 and min(p.all("seconds")) > 0 for p in found.cells.values())
    needed = [[analysis.value(p, "memory") for p in made.cells.values()] for made in (found, again)]
    assert needed[0] == needed[1], "memory has no noise"
    assert all(each is not None and each > 16 * 16 * 4 for each in needed[0])


@pytest.fixture
def scripted_points(scripted) -> Measurement:
    return measured()


def test_the_table(scripted_points):
    table = CrossoverGrid.report(scripted_points)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    assert rows[0][2:] == ["time, forward", "time, forward + backward", "memory, forward", "memory, forward + backward"]
    assert rows[2] == [LINFORMER, "materialised softmax", "16 (16 to 16)", "32 (32 to 32)", "16", "32"]
    assert rows[3][1] == "SDPA"
    assert "- softmax:sdpa: OOM: scripted (memory, forward + backward at 32; time, forward + backward at 32)" in table
    assert "- CPU of a test, 2 threads, torch " in table and ", 7 rounds. Columns and method: docs/" in table
    scripted_points.complete = False
    assert CrossoverGrid.report(scripted_points).startswith("**Not complete")


@pytest.mark.docs
def test_the_plot_is_the_same_file_each_time_and_shows_every_layer(scripted_points, tmp_path, monkeypatch):
    monkeypatch.setattr("attn_zoo.bench.crossover_analysis.exponent", lambda points, quantity: 1.5)  # two lengths have none
    for name in ("one.svg", "two.svg", "one.png"):
        plot_crossover(scripted_points, tmp_path / name)
    svg = (tmp_path / "one.svg").read_bytes()
    assert svg == (tmp_path / "two.svg").read_bytes() and b"<dc:date>" not in svg
    text = svg.decode()
    for words in ("linformer", "SDPA", "materialised softmax", "Time, forward + backward", "Memory, forward", "CPU of a test"):
        assert f"<!-- {words}" in text, words
    assert "<!-- linformer  n^1.50 -->" in text, "formulas of TeX are not set, so no label may have one"
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="every measurement failed"):
        plot_crossover(empty(grid_of(), cells={}), tmp_path / "none.svg")


CROSSOVER = ["measure", "experiment=crossover", "device=cpu", "lengths=[8,16]", "rounds=6", "repeat_seconds=0", "dim=8", "heads=2"]


def test_what_was_written_can_be_shown_and_drawn_again(scripted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["attention=linformer[projected_length=4],performer[features=2]", "output=x.json", "plot=x.svg"]
    assert main([*CROSSOVER, *words]) == 0
    table = capsys.readouterr().out
    assert "linformer[projected_length=4]" in table and "performer[features=2]" in table
    written = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert written["complete"] and len(written["cells"]) == 2 * 4 * 2
    assert written["protocol"]["rounds"] == 6 and written["grid"]["lengths"] == [8, 16]
    assert main(["measure", "experiment=crossover", "read=x.json", "plot=again.svg"]) == 0
    assert capsys.readouterr().out == table
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "x.svg").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*CROSSOVER, "plot=x.pdf"], "plot must end in .svg or .png; got 'x.pdf'"),
        ([*CROSSOVER, "plot=no/x.svg"], "plot must be a file in a folder that exists"),
        ([*CROSSOVER, "read=none.json"], "none.json"),
        ([*CROSSOVER, "read=list.json"], "list.json is a file of another kind"),
        ([*CROSSOVER, "read=words.json"], "words.json is not JSON"),
        ([*CROSSOVER, "read=part.json"], "part.json must be a complete measurement"),
        ([*CROSSOVER, "lengths=[8]"], "lengths must be a list of at least two different integers"),
        ([*CROSSOVER, "rounds=5"], "rounds= must be at least 6, because fewer rounds give no interval; got 5"),
    ],
)
def test_bad_input_is_refused_before_work_starts(words, message, scripted, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    (tmp_path / "words.json").write_text("no", encoding="utf-8")
    (tmp_path / "part.json").write_text('{"experiment": "crossover"}', encoding="utf-8")
    assert main(words) == 2
    assert message in capsys.readouterr().err
    assert Scripted.asked == []
