"""Growth over lengths at several numbers of heads: the layers that are built, and their rows in the report."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from attn_zoo.bench.experiments.growth import Growth
from attn_zoo.bench.measurement import Measurement
from attn_zoo.bench.session import Session
from attn_zoo.bench.timed import KINDS
from attn_zoo.bench.workers import Worker
from attn_zoo.layer import MultiHeadAttention


def grid(**changes) -> Growth:
    return Growth(**{"attentions": ["softmax:eager", "linear"], "lengths": [16, 32], "dim": 8, "heads": 2, **changes})


def test_each_row_is_measured_at_each_number_of_heads():
    made = grid(more_heads=[1, 4])
    (cells,) = made.groups()
    layers = {cell: made.rig(cell).build(cell.length) for cell in cells}
    heads = {cell: layer.mechanism.geometry.heads for cell, layer in layers.items() if isinstance(layer, MultiHeadAttention)}
    assert len(heads) == 2 * 2 * 3 * len(KINDS) and sorted(set(heads.values())) == [1, 2, 4]
    by_heads = {heads[cell]: made.least_bytes(cell) for cell in cells if cell.label == "softmax:eager"}
    assert by_heads[4] == 2 * by_heads[2] == 4 * by_heads[1] > 0
    assert len({made.process(cell) for cell in cells}) == 2 * 3, "a worker process holds one layer"


def test_only_the_rows_named_are_measured_at_other_numbers_of_heads():
    (cells,) = grid(more_heads=[1, 4], more_heads_of=["linear"]).groups()
    assert {(cell.label, cell.group) for cell in cells} == {("softmax:eager", ""), *(("linear", heads) for heads in ("", "1", "4"))}
    with pytest.raises(ValueError, match="more_heads_of= must name only configurations that attentions= also names; got softmax"):
        grid(more_heads=[1], more_heads_of=["linear", "softmax"])


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
    made = grid(attentions=["linear"], more_heads=[4], rounds=2)
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
    rows = [line.split("|")[-3].strip() for line in Growth.report(found).splitlines() if line.startswith("|")]
    assert rows[0] == "exponent" and rows[2:] == [exponent] * 4


@pytest.mark.parametrize("more", [[2], [3], [0], [4, 4]])
def test_heads_that_do_not_divide_the_width_or_come_twice_are_refused(more):
    with pytest.raises(ValueError, match=r"different numbers that divide dim=8; got \[2, "):
        grid(more_heads=more)
