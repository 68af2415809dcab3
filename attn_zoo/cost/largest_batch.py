"""The largest batch that a memory budget holds: by trying, or by the line that memory follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def by_trying(fits: Callable[[int], bool], guess: int = 1, limit: int = 2**20) -> int:
    """Largest batch up to ``limit`` that ``fits``; 0 when a batch of one does not fit.

    From ``guess`` on in steps that double, up or down, until the edge is passed, then by bisection. Memory must grow with
    the batch, so that everything below a batch that fits does, too.
    """
    batch, step = min(max(guess, 1), limit), 1
    held, refused = (batch, limit + 1) if fits(batch) else (0, batch)
    while held and held < limit:  # it fits: up
        batch = min(limit, held + step)
        if not fits(batch):
            refused = batch
            break
        held, step = batch, 2 * step
    while not held and refused > 1:  # it does not: down
        batch = max(1, refused - step)
        if fits(batch):
            held = batch
            break
        refused, step = batch, 2 * step
    while refused - held > 1:
        batch = (held + refused) // 2
        if fits(batch):
            held = batch
        else:
            refused = batch
    return held


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """Bytes of a step as fixed + per_sequence · batch."""

    fixed: float
    per_sequence: float

    def largest_batch(self, budget: int) -> int:
        """Largest batch whose bytes stay within ``budget``; 0 when that of one sequence does not."""
        return max(0, int((budget - self.fixed) // self.per_sequence))


def line_through(batches: tuple[int, int], peaks: tuple[int, int]) -> MemoryLine:
    """The line through the peaks of two batches.

    Raises:
        ValueError: memory does not grow between them, so they say nothing about larger ones.
    """
    (small, large), (low, high) = batches, peaks
    if large <= small or high <= low:
        raise ValueError(f"memory must grow with the batch; got {low} bytes at {small} and {high} at {large}")
    slope = (high - low) / (large - small)
    return MemoryLine(low - slope * small, slope)
