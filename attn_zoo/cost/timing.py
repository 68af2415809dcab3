"""Timers, and statistics of repeated timings: quartiles, paired quotients, instability, exponents over lengths."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

UNSTABLE = 0.2
"""Share of the median above which an interquartile range marks a figure as unstable."""

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
    """Quotient of each round, in which a slow round cancels; rounds that only one side finished have none."""
    return [a / b for a, b in zip(numerators, denominators, strict=False)]


def unstable(spread: tuple[float, float, float], share: float = UNSTABLE) -> bool:
    """Tell whether the interquartile range exceeds ``share`` of the median."""
    low, middle, high = spread
    return high - low > share * middle


def fit_exponent(lengths: Sequence[float], values: Sequence[float]) -> float:
    """Slope of log value over log length, by least squares: 1 is linear, 2 quadratic."""
    x, y = [math.log(n) for n in lengths], [math.log(v) for v in values]
    return statistics.linear_regression(x, y).slope


def seconds_of(
    step: Callable[[], object], device: torch.device, at_least: float, warmup: int | None = None, most_repeats: int = MOST_REPEATS
) -> float:
    """Seconds of one ``step``, repeated to cover about ``at_least`` seconds, after ``warmup`` untimed steps.

    On CUDA the time is taken by events on the stream around all repetitions, without waiting in between.
    """
    repeats = repeats_for(warm_up(step, device, warmup), at_least, most_repeats)
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


def seconds_of_parts(
    parts: Sequence[Callable[[Any], Any]],
    device: torch.device,
    at_least: float,
    warmup: int | None = None,
    most_repeats: int = MOST_REPEATS,
) -> tuple[float, ...]:
    """Seconds of each part of one step; each gets the result of the part before it, the first one None.

    Like ``seconds_of``; the clock is read, or on CUDA an event recorded, before, between and after the parts.
    """

    def step() -> None:
        result = None
        for part in parts:
            result = part(result)

    repeats = repeats_for(warm_up(step, device, warmup), at_least, most_repeats)
    if device.type != "cuda":
        taken = [0.0] * len(parts)
        for _ in range(repeats):
            result, before = None, time.perf_counter()
            for at, part in enumerate(parts):
                result = part(result)
                now = time.perf_counter()
                taken[at], before = taken[at] + now - before, now
        return tuple(seconds / repeats for seconds in taken)
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(len(parts) + 1)] for _ in range(repeats)]
    for start, *ends in marks:
        result = None
        start.record()
        for part, end in zip(parts, ends, strict=True):
            result = part(result)
            end.record()
    torch.cuda.synchronize(device)
    return tuple(sum(m[at].elapsed_time(m[at + 1]) for m in marks) * 1e-3 / repeats for at in range(len(parts)))


def warm_up(step: Callable[[], object], device: torch.device, steps: int | None = None) -> float:
    """Take ``steps`` warm-up steps and return seconds of the last; None means one, or two on CUDA, where the first may compile."""
    seconds = 0.0
    for _ in range(steps or (2 if device.type == "cuda" else 1)):
        wait(device)
        started = time.perf_counter()
        step()
        wait(device)
        seconds = time.perf_counter() - started
    return seconds


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work; on a CPU return at once."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def repeats_for(seconds: float, at_least: float, most: int = MOST_REPEATS) -> int:
    """Number of repetitions, 1 to ``most``, of a step of ``seconds`` that cover about ``at_least`` seconds."""
    return max(1, min(most, round(at_least / max(seconds, 1e-9))))
