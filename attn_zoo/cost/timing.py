"""Timers and the statistics of repeated timings: quartiles, paired quotients, and when a figure is not to be trusted."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

UNSTABLE = 0.2
"""A figure whose interquartile range is a larger share of its median than this is marked."""

MOST_REPEATS = 1000


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile; one value is all three.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("quartiles need at least one value")
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def quotients(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """One quotient a round, so that what slowed a whole round down cancels. Rounds that only one side finished have none."""
    return [a / b for a, b in zip(numerators, denominators, strict=False)]


def unstable(spread: tuple[float, float, float]) -> bool:
    """Whether the interquartile range exceeds ``UNSTABLE`` of the median."""
    low, middle, high = spread
    return high - low > UNSTABLE * middle


def seconds_of(step: Callable[[], object], device: torch.device, at_least: float) -> float:
    """Seconds of one ``step``, after one that is not timed; repeated until ``at_least`` seconds are covered.

    On CUDA the time is taken by events on the stream around all repetitions, without waiting in between.
    """
    first = _once(step, device)
    repeats = _repeats(first, at_least)
    if device.type != "cuda":
        started = time.perf_counter()
        for _ in range(repeats):
            step()
        return (time.perf_counter() - started) / repeats
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        step()
    end.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(end)) * 1e-3 / repeats


def seconds_of_halves(
    first: Callable[[], torch.Tensor], second: Callable[[torch.Tensor], object], device: torch.device, at_least: float
) -> tuple[float, float]:
    """Seconds of ``second(first())`` and, of these, those of ``second``: a forward pass with its graph, and backward.

    As ``seconds_of``: one step is not timed; on CUDA events are recorded before, between and after.
    """
    repeats = _repeats(_once(lambda: second(first()), device), at_least)
    if device.type != "cuda":
        whole = half = 0.0
        for _ in range(repeats):
            started = time.perf_counter()
            result = first()
            between = time.perf_counter()
            second(result)
            ended = time.perf_counter()
            whole, half = whole + ended - started, half + ended - between
        return whole / repeats, half / repeats
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(3)] for _ in range(repeats)]
    for start, between_, end in marks:
        start.record()
        result = first()
        between_.record()
        second(result)
        end.record()
    torch.cuda.synchronize(device)
    whole = sum(start.elapsed_time(end) for start, _, end in marks)
    half = sum(middle.elapsed_time(end) for _, middle, end in marks)
    return whole * 1e-3 / repeats, half * 1e-3 / repeats


def _once(step: Callable[[], object], device: torch.device) -> float:
    """Warm up, and learn how long about a step takes. On CUDA the second step tells, since the first may compile."""
    for _ in range(2 if device.type == "cuda" else 1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return time.perf_counter() - started


def _repeats(seconds: float, at_least: float) -> int:
    return max(1, min(MOST_REPEATS, round(at_least / max(seconds, 1e-9))))
