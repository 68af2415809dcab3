"""Probes: quantities to measure for a cell, and the requests to its worker process that measure them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attn_zoo.bench.measurement import Cell, Figures
from attn_zoo.count.memory import by_line

Ask = Callable[..., Any]
"""Function that gets the name and the arguments of a method, and calls this method of the object in the worker process."""

Answer = Mapping[str, float | list[float] | None]
"""Measured values by quantity. A value is a list if it has one number per batch size that was tried."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Name of a quantity, such as peak memory, and the request to a worker process that measures this quantity."""

    quantity: str
    """Quantity that is reported as failed if the request fails. The answer may contain other quantities too."""
    take: Callable[[Ask, Figures], Answer]
    needed: bool = True
    """True if a failure of this probe means that the cell cannot be measured."""


def step_arguments(cell: Cell) -> tuple[str, int, int]:
    """Return the kind of step, the number of examples and the length of a cell (one case to measure). Methods of ``Bench`` take
    these three arguments."""
    return cell.kind, cell.batch, cell.length


def _seconds(ask: Ask, found: Figures) -> Answer:
    taken = ask("parts", *step_arguments(found.cell))
    return {"seconds": sum(taken), **dict(zip(("backward_seconds", "update_seconds"), taken[1:], strict=False))}


SECONDS = Probe("seconds", _seconds)
"""Probe for the seconds of a step. In training it also gives those of the backward pass and of the optimiser's step, if any."""


def _memory(ask: Ask, found: Figures) -> Answer:
    return {f"{what}_bytes": ask(what, *step_arguments(found.cell)) for what in ("held", "peak")}


MEMORY = Probe("peak_bytes", _memory)
"""Probe for the bytes that are allocated before a step, and for the peak of the bytes that the step allocates in addition."""


def largest_batch(budget: int, *, cuda: bool, small: Callable[[int], int], least: Callable[[Cell], int]) -> Probe:
    """Return the probe (a request to a worker process) that finds the largest number of examples whose step fits into ``budget``
    bytes.

    On CUDA, batches are tried. On a CPU, the largest batch is extrapolated linearly from the memory of two batches, of which the
    second is twice as large as the first.

    Args:
        budget: number of bytes.
        cuda: True to try batches on CUDA, False to extrapolate.
        small: function that returns the size of the first of these two batches for a sequence length.
        least: function that returns a lower bound of the bytes for a cell (one case to measure). If this bound exceeds the budget,
            nothing is tried and the result is 0.
    """

    def take(ask: Ask, found: Figures) -> Answer:
        cell = found.cell
        one = (found.one("held_bytes") or 0) + (found.one("peak_bytes") or 0)
        if max(least(cell), one) > budget:
            return {"largest_batch": 0}
        if cuda:
            return {"largest_batch": ask("largest_batch", cell.kind, cell.length, budget)}
        batches = (small(cell.length), 2 * small(cell.length))
        low, high = (sum(ask(what, cell.kind, batch, cell.length) for what in ("held", "peak")) for batch in batches)
        return {"largest_batch": by_line(batches, (low, high), budget)}

    return Probe("largest_batch", take, needed=False)
