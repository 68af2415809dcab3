"""Cost axes of curves over hyperparameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from attn_zoo.leaderboard.plots.cost import AXES, cost_of
from attn_zoo.leaderboard.table import COUNTED, Block, Row


@dataclass(frozen=True, slots=True)
class CostAxis:
    """A cost as a horizontal axis."""

    name: str
    """Name in file names."""
    said: str
    """Name in titles."""
    label: str
    """Label of the axis, with the unit."""
    of: Callable[[Row], float | None]
    """Cost of a row; None where it is not known."""
    block: Callable[[Row], Block | None]
    """Block of rows whose costs may be compared; None where all rows may be."""
    counted: bool = False
    source: str = ""
    """What was measured, and where; empty for a cost that every record holds."""


RECORDED = {
    name: CostAxis(name, *words, partial(cost_of, cost=name), partial(Row.block_of, cost=name), name in COUNTED)
    for name, words in AXES.items()
}
"""Costs that records hold, by name."""
MECHANISM = CostAxis(
    "mechanism",
    "FLOPs at 4,096 tokens",
    "FLOPs of the mechanism at 4,096 tokens",
    lambda row: row.mechanism_flops_4096 or None,
    lambda row: None,
    counted=True,
)
"""Counted FLOPs of a row's mechanism at a length that tells quadratic from linear growth; 0 counts as unknown."""
