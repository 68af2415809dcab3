"""Rounds of a measurement: what is asked of which process, what fails or goes on, and the largest batch."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from attn_zoo import cli
from attn_zoo.bench import session
from attn_zoo.bench.experiments.growth import Growth
from attn_zoo.bench.measurement import Cell, Figures, Measurement
from attn_zoo.bench.session import Session
from attn_zoo.bench.tables import figure
from attn_zoo.bench.workers import WorkerError

GIVEN: dict[str, Any] = {
    "attention": ["softmax", "linformer[projected_length=64]"],
    "lengths": [128],
    "device": "cpu",
    "dim": 16,
    "heads": 2,
    "memory_gib": 1.0,
    "rounds": 3,
    "time_limit": 60.0,
}
LINFORMER = "linformer[projected_length=64]"


def grid_of(**changes: Any) -> Growth:
    return Growth(**{**GIVEN, **changes})


# Refusals


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"precision": "fp8"}, "precision must be one of fp32, bf16, fp16"),
        ({"dim": 15}, "dim= must be a multiple of heads="),
        ({"lengths": []}, "lengths must be a list of different integers"),
        ({"lengths": [64, 64]}, "lengths must be a list of different integers"),
        ({"memory_gib": 0.0}, "memory_gib must be above 0"),
        ({"sequences": 0}, "sequences must be an integer >= 1"),
        ({"time_limit": 0.0}, "time_limit must be above 0"),
        ({"rounds": 0}, "rounds must be an integer >= 1"),
        ({"order": "sorted"}, "protocol.order must be one of"),
        ({"device": "tpu"}, "device must be auto, cpu or cuda"),
        ({"attention": ["softmax:xformers"]}, "softmax:xformers cannot run here: .* xformers runs only on a CUDA GPU"),
    ],
)
def test_bad_input_is_refused_before_work(wrong, message):
    with pytest.raises(ValueError, match=message):
        grid_of(**wrong)


def test_without_a_gpu_cuda_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device=cuda needs a GPU, but PyTorch finds none"):
        grid_of(device="cuda")


# The work, with processes that answer by a script


class Scripted:
    """A worker in which a step of softmax takes 1 s a sequence and one of linformer 1 s in all up to a batch of 8."""

    asked: ClassVar[list[tuple[Any, ...]]] = []
    wrong: ClassVar[dict[tuple[Any, ...], str]] = {}
    made: ClassVar[list[Any]] = []

    def __init__(self, make: Any, build: Any, *rest: Any, environment: Any, bounded: bool) -> None:
        self.attention = build.args[0].attention
        self.made.append((self.attention, environment, bounded))

    def ask(self, method: str, kind: str, batch: int, length: int, *rest: Any, limit: float) -> Any:
        if method == "largest_batch":  # of a length, within a budget
            return length // 2**30 + batch
        self.asked.append((self.attention, method, kind, batch, length))
        for what, why in self.wrong.items():
            if what == self.asked[-1][: len(what)]:
                raise WorkerError(why, "scripted")
        if method == "parts":
            seconds = float(batch) if self.attention == "softmax" else max(1.0, batch / 8)
            return (seconds,) if kind == "forward" else (seconds, seconds)
        return {"peak": 2**20 * (2 + batch), "held": 2**20}[method]

    def stop(self) -> None: ...


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(session, "Worker", Scripted)
    for name, empty in (("asked", []), ("wrong", {}), ("made", [])):
        monkeypatch.setattr(Scripted, name, empty)
    return Scripted


def empty(grid: Growth) -> Measurement:
    environment = {"cpu": "CPU of a test", "threads": 2, "torch": "2.15.0", "gpu": None}
    return Measurement("growth", grid.identity(), grid.protocol, environment, complete=True)


def measured(grid: Growth, done: Any = None) -> tuple[Measurement, list[dict[str, Any]]]:
    """The measurement, and all that was saved on the way as it is read back."""
    saved: list[dict[str, Any]] = []
    found = empty(grid) if done is None else Measurement.from_dict(done)
    Session(grid, found, save=lambda at: saved.append(json.loads(json.dumps(at.to_dict())))).run()
    return found, saved


def at(found: Measurement, label: str, kind: str, batch: int = 1, length: int = 128) -> Figures:
    return found.cells[Cell(label, kind, length, batch)]


def test_every_figure_is_there(scripted):
    found, _ = measured(grid_of())
    for kind in ("forward", "training"):
        softmax = at(found, "softmax", kind)
        assert not softmax.failures
        assert [softmax.one(f"{what}_bytes") for what in ("peak", "held")] == [3 * 2**20, 2**20]
        assert softmax.one("largest_batch") == 1021
    training = at(found, LINFORMER, "training")
    assert (training.all("seconds"), training.all("backward_seconds")) == ([2.0] * 3, [1.0] * 3)
    assert "backward_seconds" not in at(found, LINFORMER, "forward").values


def test_a_step_has_as_many_sequences_as_asked_for_and_the_largest_batch_is_the_same(scripted):
    found, _ = measured(grid_of(sequences=8, memory_gib=2**-8))
    softmax = at(found, "softmax", "forward", batch=8)
    assert softmax.all("seconds") == [8.0] * 3 and softmax.one("peak_bytes") == 10 * 2**20
    assert softmax.one("largest_batch") == 1, "also where eight sequences do not fit into 4 MiB"
    assert "8 sequences, fp32, implementation auto; the largest batch fits into 0.00390625 GiB" in Growth.report(found)


def test_on_cuda_the_largest_batch_is_found_by_trying(scripted, monkeypatch):
    facts = SimpleNamespace(L2_cache_size=50 * 2**20, total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    grid = grid_of(device="cuda", memory_gib=3.0)
    found, _ = measured(grid)
    softmax = at(found, "softmax", "forward")
    assert [softmax.one(f"{what}_bytes") for what in ("peak", "held")] == [3 * 2**20, 2**20]
    assert softmax.one("largest_batch") == 3 + 128
    assert not any(bounded for _, _, bounded in scripted.made), "CUDA reserves far more addresses than it uses"
    protocol = grid.protocol
    assert (grid.torch_device.type, protocol.rotate_bytes, protocol.warmup) == ("cuda", 50 * 2**20, 2)
    assert protocol.to_dict()["clock"] == "events on the stream" and Growth.report(found).count("fits into 3 GiB.") == 1


def test_each_mechanism_has_a_process_of_its_own(scripted):
    measured(grid_of(allocator="keep", lengths=[128, 256]))
    assert Counter(name for name, _, _ in scripted.made) == {"softmax": 1, "linformer": 1}
    assert all(bounded and "MALLOC_TRIM_THRESHOLD_" in environment for _, environment, bounded in scripted.made)


def test_the_rounds_visit_all_timings_of_all_mechanisms_in_changing_order(scripted):
    measured(grid_of(order="shuffled"))
    timings = [(name, kind) for name, method, kind, _, _ in scripted.asked if method == "parts"]
    rounds = [timings[at : at + 4] for at in range(0, 12, 4)]
    assert len(timings) == 12 and len({frozenset(visited) for visited in rounds}) == 1 and len(set(rounds[0])) == 4
    assert len({tuple(visited) for visited in rounds}) > 1


def test_what_fails_is_a_cell_with_its_reason_and_the_others_go_on(scripted):
    scripted.wrong.update(
        {
            ("softmax", "peak", "forward"): "OOM",
            ("softmax", "parts", "training", 1): "time limit",
            ("linformer", "peak", "training", 128): "OOM",
        }
    )
    found, _ = measured(grid_of())
    assert at(found, "softmax", "forward").failures == dict.fromkeys(("peak_bytes", "largest_batch", "seconds"), "OOM: scripted")
    assert at(found, "softmax", "training").failures == {"seconds": "time limit: scripted"}
    assert ("softmax", "parts", "forward", 1, 128) not in scripted.asked, "what cannot be held is not timed"
    linformer = at(found, LINFORMER, "training")
    assert linformer.failures == {"largest_batch": "OOM: scripted"} and linformer.one("peak_bytes") == 3 * 2**20
    assert len(linformer.all("seconds")) == 3


def test_a_mechanism_that_cannot_be_built_is_not_asked(scripted):
    found, _ = measured(grid_of(lengths=[32, 128]))
    for kind in ("forward", "training"):
        refused = at(found, LINFORMER, kind, length=32)
        assert not refused.values and all(why.startswith("refused: ") for why in refused.failures.values())
        assert not at(found, LINFORMER, kind).failures
    assert not [asked for asked in scripted.asked if asked[0] == "linformer" and asked[-1] == 32]


@pytest.mark.parametrize("kept", range(8))
def test_it_goes_on_from_wherever_it_was_stopped(scripted, kept):
    whole, saved = measured(grid_of())
    assert len(saved) == 8, "after each of four cells is prepared, after each of three rounds, and at the end"
    asked = len(scripted.asked)
    scripted.asked.clear()
    again, _ = measured(grid_of(), copy.deepcopy(saved[kept]))
    assert {cell: figures.values for cell, figures in again.cells.items()} == {
        cell: figures.values for cell, figures in whole.cells.items()
    }
    assert len(scripted.asked) < asked
    assert (kept >= 6) == (not scripted.asked)


# The table


def rows(table: str) -> dict[tuple[str, str], dict[str, str]]:
    """Rows of the table, by attention and direction."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    head, _, *cells = [[cell.strip() for cell in re.split(r"\|", line)[1:-1]] for line in lines]
    return {(row[0], row[1]): dict(zip(head, row, strict=True)) for row in cells}


def test_figures_carry_their_spread_and_a_mark():
    assert figure([1.0, 1.1, 1.0]) == "1.00 ± 0.03"
    assert figure([1.0, 2.0, 3.0]) == "~2.00 ± 0.50"
    assert figure([12345.6] * 3) == "12,346 ± 0"


def test_the_table_of_the_scripted_measurement(scripted):
    scripted.wrong[("softmax", "parts", "training", 1)] = "time limit"
    scripted.wrong[("linformer", "peak", "training", 128)] = "OOM"
    found, _ = measured(grid_of())
    at(found, LINFORMER, "forward").values["seconds"] = [1.0, 2.0, 3.0]
    table = Growth.report(found)
    made = rows(table)
    assert made["softmax", "forward + backward"]["128 (ms)"] == "time limit"
    assert made["softmax", "forward"]["128 (ms)"] == "1,000 ± 0" and made[LINFORMER, "forward"]["128 (ms)"] == "~2,000 ± 500"
    assert made[LINFORMER, "forward + backward"]["128 (ms)"] == "2,000 ± 0"
    assert {row["peak at 128 (MiB)"] for row in made.values()} == {"3"}
    assert [row["largest batch at 128"] for row in made.values()] == ["1,021", "1,021", "1,021", "OOM"]
    assert "- softmax: time limit: scripted (time, forward + backward at 128)" in table
    assert "3 rounds. Columns and method: docs/reference/measurements.md#growth." in table
    assert "largest batch" not in Growth.report(measured(grid_of(memory_gib=None))[0])


def test_the_command_measures_and_goes_on(tmp_path, capsys):
    """With real processes: everything that is asked of a bench is there."""
    output = tmp_path / "growth.json"
    words = ["measure", "attention=softmax:sdpa", "lengths=[64]", "dim=8", "heads=2", "memory_gib=16"]
    words += ["rounds=2", "device=cpu", f"output={output}"]
    assert cli.main(words) == 0
    first = capsys.readouterr().out
    written = json.loads(output.read_text(encoding="utf-8"))
    found = Measurement.from_dict(written)
    assert written["complete"] and not any(figures.failures for figures in found.cells.values())
    training = at(found, "softmax:sdpa", "training", length=64)
    assert all(len(training.all(name)) == 2 for name in ("seconds", "backward_seconds"))
    assert (training.one("largest_batch") or 0) > 0 and (training.one("peak_bytes") or 0) > 0
    written["complete"] = False
    output.write_text(json.dumps(written), encoding="utf-8")
    assert cli.main(words) == 0
    again = capsys.readouterr()
    assert again.out == first and "going on from there" in again.err
    for changed, held in (([], "this measurement, which is finished"), (["dim=16"], "a measurement with other settings")):
        kept = output.read_bytes()
        assert cli.main([*words, *changed]) == 2 and output.read_bytes() == kept
        assert f"holds {held}" in capsys.readouterr().err
    output.write_text("my notes", encoding="utf-8")
    assert cli.main(words) == 2 and output.read_text(encoding="utf-8") == "my notes"
    assert "holds something else. Name another file, or delete this one" in " ".join(capsys.readouterr().err.split())
