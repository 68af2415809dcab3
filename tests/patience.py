"""Limits of time that hold on slow and loaded machines."""

from __future__ import annotations

import time

HANG = 1800.0
"""Seconds after which a process is taken to hang; no test measures by it."""
_USUAL = 0.036
"""Processor time of the loop of ``slowness`` on the machine for which limits are stated, in seconds."""


def slowness() -> float:
    """Processor time of a fixed loop here and now, over its time on the machine for which limits are stated; at least 1."""

    def taken() -> float:
        started, total = time.process_time(), 0
        for number in range(2_000_000):
            total += number
        return time.process_time() - started

    return max(1.0, min(taken() for _ in range(3)) / _USUAL)


def within(seconds: float, limit: float) -> bool:
    """Return True if processor time is within a limit, which grows on a slow machine; it is measured only beyond the limit."""
    return seconds <= limit or seconds <= limit * slowness()
