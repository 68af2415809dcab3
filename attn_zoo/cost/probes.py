"""What is asked of a cell's process, and which quantities the answer gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from attn_zoo.cost.compare import fewest_rounds
from attn_zoo.cost.largest_batch import line_through
from attn_zoo.cost.measurement import Cell

Ask = Callable[..., Any]
"""A method of the object in the process, and its arguments."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A quantity, and how it is asked for."""

    quantity: str
    """Under which a failure stands; the answer may hold others beside it."""
    take: Callable[[Ask, Cell], Mapping[str, float | None]]
    fresh: bool = False
    """Whether it is asked of a process that did nothing before."""
    needed: bool = True
    """Whether a cell of which it fails has nothing else either."""
    most_rounds: int | None = None


def _of(cell: Cell) -> tuple[str, int, int]:
    return cell.kind, cell.batch, cell.length


def _seconds(ask: Ask, cell: Cell) -> Mapping[str, float | None]:
    taken = ask("parts", *_of(cell))
    return {"seconds": sum(taken), **dict(zip(("backward_seconds", "update_seconds"), taken[1:], strict=False))}


def _memory(resident: bool, ask: Ask, cell: Cell) -> Mapping[str, float | None]:
    found = {"resident_bytes": ask("resident_peak", *_of(cell))} if resident else {}
    return found | {"held_bytes": ask("held", *_of(cell)), "peak_bytes": ask("peak", *_of(cell))}


def _largest_batch(budget: int, cuda: bool, small: Callable[[int], int], ask: Ask, cell: Cell) -> Mapping[str, float | None]:
    kind, _, length = _of(cell)
    if cuda:
        return {"largest_batch": ask("largest_batch", kind, length, budget)}
    needed = [sum(ask(what, kind, batch, length) for what in ("held", "peak")) for batch in (small(length), 2 * small(length))]
    line = line_through((small(length), 2 * small(length)), (needed[0], needed[1]))
    return {"largest_batch": line.largest_batch(budget)}


SECONDS = Probe("seconds", _seconds)
"""Of a step; in training also those of its backward pass and, where there is one, of the optimiser's step."""

JOULES = Probe("joules", lambda ask, cell: {"joules": ask("joules", *_of(cell))}, needed=False, most_rounds=fewest_rounds())
"""Of a step, in as many rounds as an interval needs."""

MEMORY = Probe("peak_bytes", partial(_memory, False))
"""Bytes that are there before a step, and the most that it holds above them at once."""

RESIDENT = Probe("peak_bytes", partial(_memory, True), fresh=True)
"""As ``MEMORY``, with what the process holds, which did nothing before."""


def largest_batch(budget: int, *, cuda: bool, small: Callable[[int], int], fresh: bool = False) -> Probe:
    """The largest batch within ``budget`` bytes: on CUDA by trying, else by the line through two batches.

    Args:
        small: the smaller of the two batches, for a length.
        fresh: ask a process that did nothing before.
    """
    return Probe("largest_batch", partial(_largest_batch, budget, cuda, small), fresh=fresh, needed=False)
