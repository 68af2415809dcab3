"""Probes. A probe names a quantity, and requests its measurement from a worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from attn_zoo.bench.measurement import Cell, Figures
from attn_zoo.count.memory import by_line

Ask = Callable[..., Any]
"""Function that calls a method of the object in the worker process. Its arguments are the name and the arguments of the method."""

Answer = Mapping[str, float | None]
"""Measured values by quantity."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Name of a quantity, such as peak memory, with a function (``take``) that lets a worker process measure it."""

    quantity: str
    """Quantity that is recorded as failed if the request fails."""
    take: Callable[[Ask, Figures], Answer]
    needed: bool = True
    """True if a failure of this probe also counts as a failure of all quantities of the case that have no value yet."""


def step_arguments(cell: Cell) -> tuple[str, int, int]:
    """Return the arguments with which methods of ``Bench`` measure a case (``cell``): kind of step, number of examples and
    length."""
    return cell.kind, cell.batch, cell.length


def _seconds(ask: Ask, found: Figures) -> Answer:
    taken = ask("parts", *step_arguments(found.cell))
    return {"seconds": sum(taken), **({"backward_seconds": taken[1]} if len(taken) > 1 else {})}


SECONDS = Probe("seconds", _seconds)
"""Probe for the seconds of a step. For training, the seconds of the backward pass are measured too."""


def _memory(ask: Ask, found: Figures) -> Answer:
    return {f"{what}_bytes": ask(what, *step_arguments(found.cell)) for what in ("held", "peak")}


MEMORY = Probe("peak_bytes", _memory)
"""Probe for the bytes that are allocated before a step, and for the peak of the additional bytes during the step."""


def largest_batch(budget: int, *, cuda: bool, small: Callable[[int], int], least: Callable[[Cell], int]) -> Probe:
    """Return the probe (a request to a worker process) that finds the largest number of examples whose step fits into ``budget``
    bytes.

    On CUDA, batches are tried. On a CPU, the memory of two batches is extrapolated linearly. The second batch is twice as large as
    the first.

    Args:
        cuda: True to try batches on CUDA, False to extrapolate.
        small: function from a sequence length to the size of the first of the two batches.
        least: function from a case to a lower bound of its bytes. If this bound for one example, or the memory that was measured
            for it, exceeds the budget, nothing is tried, and the result is 0.
    """

    def take(ask: Ask, found: Figures) -> Answer:
        cell = found.cell
        one = (found.one("held_bytes") or 0) + (found.one("peak_bytes") or 0) if cell.batch == 1 else 0
        if max(least(replace(cell, batch=1)), one) > budget:
            return {"largest_batch": 0}
        if cuda:
            return {"largest_batch": ask("largest_batch", cell.kind, cell.length, budget)}
        batches = (small(cell.length), 2 * small(cell.length))
        low, high = (sum(ask(what, cell.kind, batch, cell.length) for what in ("held", "peak")) for batch in batches)
        return {"largest_batch": by_line(batches, (low, high), budget)}

    return Probe("largest_batch", take, needed=False)
