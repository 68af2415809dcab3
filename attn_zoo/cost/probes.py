"""What is asked of a cell's process, and which quantities the answer gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attn_zoo.cost.compare import fewest_rounds
from attn_zoo.cost.largest_batch import line_through
from attn_zoo.cost.measurement import Cell, Figures

Ask = Callable[..., Any]
"""A method of the object in the process, and its arguments."""

Answer = Mapping[str, float | list[float] | None]
"""By quantity a value; of what was sought in several steps a value a step."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A quantity, and how it is asked for."""

    quantity: str
    """Under which a failure stands; the answer may hold others beside it."""
    take: Callable[[Ask, Figures], Answer]
    fresh: bool = False
    """Whether it is asked of a process that did nothing before."""
    needed: bool = True
    """Whether a cell of which it fails has nothing else either."""
    most_rounds: int | None = None


def of(cell: Cell) -> tuple[str, int, int]:
    """A cell's step as a bench names it."""
    return cell.kind, cell.batch, cell.length


def _seconds(ask: Ask, found: Figures) -> Answer:
    taken = ask("parts", *of(found.cell))
    return {"seconds": sum(taken), **dict(zip(("backward_seconds", "update_seconds"), taken[1:], strict=False))}


SECONDS = Probe("seconds", _seconds)
"""Of a step; in training also those of its backward pass and, where there is one, of the optimiser's step."""

JOULES = Probe("joules", lambda ask, f: {"joules": ask("joules", *of(f.cell))}, needed=False, most_rounds=fewest_rounds())
"""Of a step, in as many rounds as an interval needs."""


def memory(*, resident: bool = False, fresh: bool = False, small: Callable[[int], int | None] = lambda length: None) -> Probe:
    """Bytes that are there before a step, and the most that it holds above them at once.

    Args:
        resident: with what the process holds.
        fresh: of a process that did nothing before.
        small: length of the step that starts its libraries, for a length; None is the shortest that can be built.
    """

    def take(ask: Ask, found: Figures) -> Answer:
        length = found.cell.length
        held = {"resident_bytes": ask("resident_peak", *of(found.cell), small(length))} if resident else {}
        return held | {f"{what}_bytes": ask(what, *of(found.cell)) for what in ("held", "peak")}

    return Probe("peak_bytes", take, fresh=fresh)


def largest_batch(budget: int, *, cuda: bool, small: Callable[[int], int], least: Callable[[Cell], int]) -> Probe:
    """The largest batch within ``budget`` bytes: on CUDA by trying, else by the line through two batches.

    Args:
        small: the smaller of the two batches, for a length.
        least: bytes that a cell needs by arithmetic alone; above the budget nothing is tried.
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
        return {"largest_batch": line_through(batches, (low, high)).largest_batch(budget)}

    return Probe("largest_batch", take, needed=False)
