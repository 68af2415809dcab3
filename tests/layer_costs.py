"""Costs of one layer at 4,096 tokens from ``results/curves_layers.json``: the horizontal axes of ``results/curves.svg``."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from committed import measured

from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.tables import machine
from attn_zoo.leaderboard.heatmap import LENGTH
from attn_zoo.leaderboard.plot import CostAxis
from attn_zoo.leaderboard.table import Row
from attn_zoo.terminal import short


def layer_axes() -> list[CostAxis]:
    """Return the counted FLOPs of a row's mechanism, and the measured time and peak memory of a layer around it."""
    found = Measurement.from_dict(measured("curves_layers"))
    dim, heads = found.settings["dim"], found.settings["heads"]

    def is_of(cell: Cell, row: Row) -> bool:
        subject = cell.subject
        if subject is None or subject.attention != row.attention or int(cell.group or heads) != (row.heads or heads):
            return False
        return all(row.options.get(name, value) == value for name, value in subject.options.items())

    def of(quantity: str, factor: float) -> Callable[[Row], float | None]:
        cells = [cell for cell in found.cells if (cell.length, cell.kind) == (LENGTH, "training")]
        costs = {cell: factor * median(values) for cell in cells if (values := cell.all(quantity))}
        return lambda row: next((cost for cell, cost in costs.items() if is_of(cell, row)), None)

    at = f"at {LENGTH:,} tokens"
    source = (
        f"one layer of width {dim} with {heads} heads or those of the row, one sequence, forward and backward, on {machine(found)}"
    )
    return [
        CostAxis("mechanism", f"FLOPs {at}", lambda row: row.mechanism_flops_4096, "counted, the same on every machine", short),
        CostAxis("time", f"time {at} (ms)", of("seconds", 1e3), source),
        CostAxis("memory", f"peak memory {at} (MiB)", of("peak_bytes", 2**-20), source),
    ]
