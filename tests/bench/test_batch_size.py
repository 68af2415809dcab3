"""``experiment=batch_size``: every batch of every layer is timed in the same rounds, and the table is of sequences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attn_zoo.bench.experiments import batch_size, report
from attn_zoo.bench.experiments.batch_size import BatchSize
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.cli import main
from attn_zoo.count.rigs import Subject

WORDS = ["measure", "experiment=batch_size", "attentions=[softmax,none]", "lengths=[32]", "batches=[1,4]", "dim=8", "heads=2"]
WORDS += ["rounds=2", "repeat_seconds=0", "device=cpu"]


def test_the_command_times_every_batch(tmp_path, capsys):
    assert main([*WORDS, f"output={tmp_path / 'b.json'}"]) == 0
    out = capsys.readouterr().out
    data = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))
    cells = Measurement.from_dict(data).cells
    assert len(cells) == 2 * 2 * 2 and all(len(figures.all("seconds")) == 2 for figures in cells.values())
    assert {cell.batch for cell in cells} == {1, 4}
    assert report(data) == out.rstrip("\n")


def test_the_table_is_of_sequences():
    grid = BatchSize(attentions=["softmax"], batches=[1, 4], device="cpu", rounds=3)
    found = Measurement("batch_size", grid.identity(), grid.protocol, {"gpu": "GPU of a test", "torch": "2"}, complete=True)
    for batch, seconds in ((1, 0.002), (4, 0.004)):
        for kind in ("forward", "training"):
            cell = Cell("softmax", kind, 1024, batch, subject=Subject("softmax", {}))
            found.of(cell).values = {"seconds": [seconds] * 3}
    found.of(cell).values, found.of(cell).failures = {}, {"seconds": "OOM: scripted"}
    table = BatchSize.report(found)
    rows = [[each.strip() for each in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    assert rows[2] == ["softmax", "1024", "forward", "2.00 ± 0.00", "1.00 ± 0.00"]
    assert rows[3] == ["softmax", "1024", "forward + backward", "2.00 ± 0.00", "OOM"]
    assert "- softmax: OOM: scripted (time, forward + backward, batch 4 at 1,024)" in table


@pytest.mark.parametrize("wrong", ["batches=[]", "batches=[2,2]", "batches=[0]"])
def test_wrong_batches_are_refused(wrong, capsys):
    assert main([*WORDS, wrong]) == 2
    assert "batches are different whole numbers of at least 1" in capsys.readouterr().err


def test_an_experiment_is_one_file_of_at_most_120_lines():
    assert len(Path(batch_size.__file__).read_text(encoding="utf-8").splitlines()) <= 120
