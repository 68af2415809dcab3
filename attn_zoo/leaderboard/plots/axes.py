"""Costs along which curves over hyperparameters are drawn: as records hold them, or of one layer as it was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from attn_zoo.leaderboard.plots.cost import AXES, cost_of
from attn_zoo.leaderboard.rows import COUNTED, Block, Row

if TYPE_CHECKING:  # a second of imports, which no other plot needs
    from attn_zoo.cost.bench import Subject
    from attn_zoo.cost.measurement import Cell, Measurement

EXPERIMENT = "growth"
"""Measurement that tells costs of a layer by its length."""
_QUANTITIES: Mapping[str, tuple[str, str, float]] = {
    "seconds": ("time", "ms", 1e3),
    "peak_bytes": ("peak memory", "MiB", 2**-20),
}
"""Words, unit and factor of what is measured of a layer."""


@dataclass(frozen=True, slots=True)
class CostAxis:
    """A cost as a horizontal axis."""

    name: str
    """Part of the name of a file."""
    said: str
    """Words in a title."""
    label: str
    """Words on the axis, with the unit."""
    of: Callable[[Row], float | None]
    """Cost of a row; None where it is not known."""
    block: Callable[[Row], Block | None]
    """Rows whose costs may be compared; None for all."""
    counted: bool = False
    source: str = ""
    """What was measured, and where; empty for a cost that every record holds."""


RECORDED = {
    name: CostAxis(name, *words, partial(cost_of, cost=name), partial(Row.block, cost=name), name in COUNTED)
    for name, words in AXES.items()
}
"""Costs that records hold, by name."""
MECHANISM = CostAxis(
    "mechanism",
    "FLOPs at 4,096 tokens",
    "FLOPs of the mechanism at 4,096 tokens",
    lambda row: row.costs.mechanism_flops_4096 or None,
    lambda row: None,
    counted=True,
)
"""Counted FLOPs of a row's mechanism at a length that tells quadratic from linear growth; a count of 0 is none."""


def layer_axes(file: Path) -> list[CostAxis]:
    """Axes of time and peak memory of a step forward and backward, at each length that ``attn-zoo measure`` wrote to a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no finished measurement of ``experiment=growth``.
    """
    from attn_zoo.cost.measurement import Measurement

    found = Measurement.read("--layers", EXPERIMENT, file)
    if not found.finished:
        raise ValueError(f"{file} was not finished; run the same attn-zoo measure command again, which goes on from there")
    there, grid = found.environment, found.grid
    source = (
        f"one layer of width {grid['dim']} with {grid['heads']} heads, one sequence, forward and backward, on "
        f"{there['gpu'] or there['cpu']}, {there['threads']} threads, torch {there['torch']}"
    )
    made = []
    for length in sorted({cell.length for cell in found.cells}):
        cells = [cell for cell in found.cells if cell.length == length and cell.kind == "training"]
        for quantity, (words, unit, factor) in _QUANTITIES.items():
            costs = {cell: value for cell in cells if (value := _value(found, cell, quantity, factor)) is not None}
            if costs:
                said = f"{words} at {length:,} tokens"
                name = f"{words.split()[-1]}-{length}"
                made.append(CostAxis(name, said, f"{said} ({unit})", partial(_of, costs=costs), lambda row: None, source=source))
    return made


def _value(found: Measurement, cell: Cell, quantity: str, factor: float) -> float | None:
    values = found.of(cell).all(quantity)
    return factor * median(values) if values else None


def _of(row: Row, costs: Mapping[Cell, float]) -> float | None:
    """Cost of the layer that is built as the row's, where the row takes the implementation that a device offers by itself."""
    if row.costs.block.measured_as not in ("auto", "eager"):
        return None
    return next((cost for cell, cost in costs.items() if cell.subject and _is_of(cell.subject, row)), None)


def _is_of(subject: Subject, row: Row) -> bool:
    shared = subject.options.keys() & row.options.keys()
    return subject.attention == row.attention and all(subject.options[name] == row.options[name] for name in shared)
