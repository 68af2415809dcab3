"""Growth over lengths at several numbers of heads: the layers that are built, and their rows in the report."""

from __future__ import annotations

import pytest

from attn_zoo.cost.experiments.growth import Growth
from attn_zoo.cost.measurement import Measurement
from attn_zoo.cost.timed import KINDS
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


def test_rows_of_other_heads_are_named():
    made = grid(more_heads=[1, 4])
    found = Measurement(
        "growth", vars(made), made.protocol, {"cpu": "this", "gpu": None, "threads": 2, "torch": "2"}, complete=True
    )
    for cell in made.groups()[0]:
        found.of(cell).values = {"seconds": [cell.length * 1e-3] * 3, "peak_bytes": [2**20]}
    rows = [line.split("|")[1].strip() for line in Growth.report(found).splitlines() if line.startswith("|")]
    wanted = [f"{name}{heads}" for heads in ("", ", 1 head", ", 4 heads") for name in ("softmax:eager", "linear")]
    assert rows[2:] == [name for name in wanted for _ in KINDS]


@pytest.mark.parametrize("more", [[2], [3], [0], [4, 4]])
def test_heads_that_do_not_divide_the_width_or_come_twice_are_refused(more):
    with pytest.raises(ValueError, match=r"different numbers that divide dim=8; got \[2, "):
        grid(more_heads=more)
