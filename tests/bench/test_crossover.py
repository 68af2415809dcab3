"""``experiment=crossover`` and ``experiment=growth``: cells that ran out of memory, tables, plot, and the command."""

from __future__ import annotations

import json
from typing import Any

import pytest
from committed import measured as committed
from patience import HANG
from scripted import LINFORMER, Scripted, at, crossover, empty, growth, measured

from attn_zoo.bench.experiments import crossover as analysis
from attn_zoo.bench.experiments.crossover import CrossoverExperiment
from attn_zoo.bench.experiments.crossover_plot import plot_crossover
from attn_zoo.bench.experiments.growth import GrowthExperiment
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.tables import figure, spread
from attn_zoo.cli import main
from attn_zoo.count.subjects import Subject


@pytest.fixture
def found(scripted) -> Measurement:
    """A scripted measurement, in which training with softmax runs out of memory at length 32."""
    scripted.wrong |= {("softmax", method, "training", 32): "OOM" for method in ("held", "peak", "parts")}
    return measured(crossover())[0]


def test_who_ran_out_of_memory_or_was_refused_is_compared_as_such(found):
    refused = {(cell.label, cell.length) for cell in found.cells if cell.failures.get("seconds", "").startswith("refused: ")}
    assert refused == {(LINFORMER, 8)}
    lost = {(c.role, c.kind, c.length) for c in found.cells if c.failures.get("seconds", "").startswith("OOM: ")}
    assert lost == {(role, "training", 32) for role in ("materialised", "sdpa")}
    assert all(len(cell.all("seconds")) == 7 for cell in found.cells if not cell.failures)
    for role in ("materialised", "sdpa"):
        time = analysis.crossover(found.cells, LINFORMER, role, "forward", "time")
        assert time is not None and time.describe() == "16 (16 to 16)"
        memory = analysis.crossover(found.cells, LINFORMER, role, "training", "memory")
        assert memory is not None and memory.at == 32


def test_softmax_is_not_compared_with_itself(scripted):
    found, _ = measured(crossover(attention=["softmax", "softmax:sdpa", LINFORMER]))
    assert {cell.label for cell in found.cells} == {"softmax:eager", "softmax:sdpa", LINFORMER}
    with pytest.raises(ValueError, match="attention= must name a mechanism other than softmax"):
        crossover(attention=["softmax"])
    itself = [Cell("softmax", "forward", n, subject=Subject("softmax", {})) for n in (8, 16)]
    assert analysis.compared([*itself, *found.cells]) == [LINFORMER], "also in a file that was written before"


@pytest.mark.exhaustive
def test_a_real_measurement_of_two_lengths():
    small: dict[str, Any] = {"lengths": [16, 32], "rounds": 6, "time_limit": HANG}
    found, again = (measured(crossover(**small))[0] for _ in range(2))
    assert [cell.failures for cell in found.cells if cell.failures] == []
    assert all(len(cell.all("seconds")) == 6 and min(cell.all("seconds")) > 0 for cell in found.cells)
    needed = [[analysis.cost(cell, "memory") for cell in made.cells] for made in (found, again)]
    assert needed[0] == needed[1], "memory has no noise"
    assert all(each is not None and each > 16 * 16 * 4 for each in needed[0])


def rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]


def test_the_table(found):
    table = CrossoverExperiment.report(found)
    head, _, first, second = rows(table)
    assert head[2:] == ["time, forward", "time, forward + backward", "memory, forward", "memory, forward + backward"]
    assert first == [LINFORMER, "materialised softmax", "16 (16 to 16)", "32 (32 to 32)", "16", "32"]
    assert second[1] == "SDPA"
    assert "- softmax:sdpa: OOM: scripted (memory, forward + backward at 32; time, forward + backward at 32)" in table
    assert "- CPU of a test, 2 threads, torch " in table and ", 7 rounds. Columns and method: docs/" in table
    found.complete = False
    assert CrossoverExperiment.report(found).startswith("**Not complete")


@pytest.mark.docs
def test_the_plot_is_the_same_file_each_time_and_shows_every_layer(found, tmp_path, monkeypatch):
    monkeypatch.setattr(analysis, "exponent", lambda cells, quantity: 1.5)  # two lengths have none
    for name in ("one.svg", "two.svg", "one.png"):
        plot_crossover(found, tmp_path / name)
    svg = (tmp_path / "one.svg").read_bytes()
    assert svg == (tmp_path / "two.svg").read_bytes() and b"<dc:date>" not in svg
    text = svg.decode()
    for words in ("linformer", "SDPA", "materialised softmax", "Time, forward + backward", "Memory, forward", "CPU of a test"):
        assert f"<!-- {words}" in text, words
    assert "<!-- linformer  n^1.50 -->" in text, "formulas of TeX are not set, so no label may have one"
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="every measurement failed"):
        plot_crossover(empty(crossover()), tmp_path / "none.svg")


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


# Growth


def test_figures_carry_their_spread_and_a_mark():
    assert figure([1.0, 1.1, 1.0]) == "1.00 ± 0.03"
    assert figure([1.0, 2.0, 3.0]) == "~2.00 ± 0.50"
    assert figure([12345.6] * 3) == "12,346 ± 0"
    assert spread([5.0, 1.0, 4.0, 2.0, 3.0], 1) == "3.0 ± 1.0 unstable"
    assert spread([0.92, 1.0, 1.10], 3) == "1.000 ± 0.045"
    assert spread([0.76, 1.0, 1.20], 3) == "1.000 ± 0.110 unstable"


def test_the_table_of_growth(scripted):
    scripted.wrong |= {("softmax", "parts", "training"): "time limit", ("linformer", "peak", "training", 16, 512): "OOM"}
    found, _ = measured(growth())
    at(found, LINFORMER, "forward").values["seconds"] = [1.0, 2.0, 3.0]
    table = GrowthExperiment.report(found)
    head, _, *made = rows(table)
    assert head == ["attention", "direction", "16 (ms)", "exponent", "peak at 16 (MiB)", "largest batch at 16"]
    assert made == [
        ["softmax", "forward", "16.0 ± 0.0", "-", "0", "64"],
        ["softmax", "forward + backward", "time limit", "-", "0", "64"],
        [LINFORMER, "forward", "~2,000 ± 500", "-", "0", "64"],
        [LINFORMER, "forward + backward", "16.0 ± 0.0", "-", "0", "OOM"],
    ]
    assert "- softmax: time limit: scripted (time, forward + backward at 16)" in table
    assert "3 rounds. Columns and method: docs/reference/measurements.md#growth." in table
    assert "largest batch" not in GrowthExperiment.report(measured(growth(memory_gib=None))[0])


@pytest.mark.parametrize(("lengths", "exponent"), [([16, 32], "-"), ([16, 32, 64], "1.00")])
def test_an_exponent_needs_three_lengths(lengths, exponent):
    made = growth(lengths=lengths, memory_gib=None)
    found = empty(made)
    for cell in made.groups()[0]:
        found.of(cell).values.update({"seconds": [cell.length * 1e-3] * 3, "peak_bytes": [2**20]})
    assert [row[-2] for row in rows(GrowthExperiment.report(found))[2:]] == [exponent] * 4
    next(iter(found.cells)).values["seconds"] *= 2
    assert ", 3 to 6 rounds." in GrowthExperiment.report(found), "a time limit left out rounds"
    for cell in found.cells:
        cell.values["seconds"] = [1e-3]
    assert ", 1 round." in GrowthExperiment.report(found)


def test_rows_of_a_file_with_several_numbers_of_heads_are_named():
    table = GrowthExperiment.report(Measurement.from_dict(committed("curves_layers")))
    assert [row[0] for row in rows(table)[-4:]] == ["softmax, heads=16"] * 2 + ["linear, heads=16"] * 2
