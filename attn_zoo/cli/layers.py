"""Cost axes for ``attn-zoo leaderboard --layers``: time and memory of one layer, as measured by
``attn-zoo measure experiment=growth``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median

from attn_zoo.bench.experiments.growth import heads_of
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.tables import machine
from attn_zoo.count.rigs import Subject
from attn_zoo.leaderboard.plot import CostAxis
from attn_zoo.leaderboard.table import Row

_QUANTITIES: Mapping[str, tuple[str, str, float]] = {
    "seconds": ("time", "ms", 1e3),
    "peak_bytes": ("peak memory", "MiB", 2**-20),
}
"""For each measured quantity: its name, its unit, and the factor that converts values to this unit."""


def layer_axes(file: Path) -> list[CostAxis]:
    """Return costs by which the leaderboard can compare mechanisms: for each length in a file of ``attn-zoo measure``, the time and
    the peak memory of a forward and backward pass of one layer.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a finished measurement of ``experiment=growth``.
    """
    found = Measurement.read("--layers", "growth", file)
    if not found.finished:
        raise ValueError(f"the measurement in {file} is not complete. Run the same attn-zoo measure command again to finish it")
    grid = found.grid
    source = (
        f"one layer of width {grid['dim']} with {grid['heads']} heads or those of the row, one sequence, forward and backward, on "
        f"{machine(found)}"
    )
    made = []
    for length in sorted({cell.length for cell in found.cells}):
        cells = [cell for cell in found.cells if cell.length == length and cell.kind == "training"]
        for quantity, (words, unit, factor) in _QUANTITIES.items():
            costs = {cell: factor * median(values) for cell in cells if (values := found.of(cell).all(quantity))}
            if costs:
                name = f"{words.split()[-1]}-{length}"
                of = partial(_of, costs=costs, heads=grid["heads"])
                made.append(CostAxis(name, f"{words} at {length:,} tokens ({unit})", of, source))
    return made


def _of(row: Row, costs: Mapping[Cell, float], heads: int) -> float | None:
    """Return the cost of the measured layer with the mechanism, options and heads of a row; a row without a number of heads has
    ``heads``. Return None if there is no such layer, or if the row is not measured as ``auto`` or ``eager``."""
    if row.block.measured_as not in ("auto", "eager"):
        return None
    own = {cell: cost for cell, cost in costs.items() if heads_of(cell, heads) == (row.heads or heads)}
    return next((cost for cell, cost in own.items() if cell.subject and _is_of(cell.subject, row)), None)


def _is_of(subject: Subject, row: Row) -> bool:
    shared = subject.options.keys() & row.options.keys()
    return subject.attention == row.attention and all(subject.options[name] == row.options[name] for name in shared)
