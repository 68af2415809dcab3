"""Timers, and statistics of repeated timings: quartiles, quotients per round, instability, and exponents of growth."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

UNSTABLE = 0.2
"""A timing is unstable if its interquartile range is more than this share of its median."""

MOST_REPEATS = 1000

Parts = tuple[Callable[[Any], Any], ...]
"""Functions that make up a step. Each is called with the result of the previous function, and the first one with None."""


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile of the values. A single value is all three.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("quartiles must get at least one value; got none")
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def quotients(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Return numerator / denominator for each round of timings. What slows a whole round down cancels in the quotient. Rounds that
    only one of the two lists contains are left out."""
    return [a / b for a, b in zip(numerators, denominators, strict=False)]


def unstable(spread: tuple[float, float, float], share: float = UNSTABLE) -> bool:
    """Return True if the interquartile range is more than ``share`` of the median. ``spread`` contains the lower quartile, the
    median and the upper quartile."""
    low, middle, high = spread
    return high - low > share * middle


def fit_exponent(lengths: Sequence[float], values: Sequence[float]) -> float:
    """Return the exponent p of the power law value ~ length^p, fitted by least squares to logarithms. 1 is linear growth, and 2 is
    quadratic."""
    x, y = [math.log(n) for n in lengths], [math.log(v) for v in values]
    return statistics.linear_regression(x, y).slope


def seconds_of(
    step: Callable[[], object], device: torch.device, at_least: float, warmup: int | None = None, most_repeats: int = MOST_REPEATS
) -> float:
    """Return the seconds of one ``step``. The step is repeated until about ``at_least`` seconds have passed, after ``warmup``
    untimed steps.

    On CUDA, events on the stream before and after all repetitions measure the time, without waiting in between.
    """
    repeats = repeats_for(warm_up(step, device, warmup), at_least, most_repeats)
    start = _mark(device)
    for _ in range(repeats):
        step()
    end = _mark(device)
    wait(device)
    return _seconds_between(start, end) / repeats


def seconds_of_parts(
    parts: Parts, device: torch.device, at_least: float, warmup: int | None = None, most_repeats: int = MOST_REPEATS
) -> tuple[float, ...]:
    """Return the seconds of each part of one step. It works like ``seconds_of``, with time marks before, between and after the
    parts."""
    repeats = repeats_for(warm_up(step_of(parts), device, warmup), at_least, most_repeats)
    steps = []
    for _ in range(repeats):
        result, marks = None, [_mark(device)]
        for part in parts:
            result = part(result)
            marks.append(_mark(device))
        steps.append(marks)
    wait(device)
    return tuple(sum(_seconds_between(*marks[at : at + 2]) for marks in steps) / repeats for at in range(len(parts)))


def _mark(device: torch.device) -> Any:
    """Return a point in time: a reading of the clock or, on CUDA, an event on the stream."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _seconds_between(start: Any, end: Any) -> float:
    """Return the seconds between two marks. Marks on CUDA must have happened."""
    return end - start if isinstance(start, float) else start.elapsed_time(end) * 1e-3


def step_of(parts: Parts) -> Callable[[], None]:
    """Return a function that runs the parts of a step one after another."""

    def step() -> None:
        result = None
        for part in parts:
            result = part(result)

    return step


def warm_up(step: Callable[[], object], device: torch.device, steps: int | None = None) -> float:
    """Run ``steps`` warm-up steps and return the seconds of the last one. The default is one step, or two on CUDA, where the first
    step may compile."""
    seconds = 0.0
    for _ in range(steps or (2 if device.type == "cuda" else 1)):
        wait(device)
        started = time.perf_counter()
        step()
        wait(device)
        seconds = time.perf_counter() - started
    return seconds


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work. On a CPU, return at once."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def repeats_for(seconds: float, at_least: float, most: int = MOST_REPEATS) -> int:
    """Return how often a step of ``seconds`` must be repeated to last about ``at_least`` seconds: from 1 to ``most`` times."""
    return max(1, min(most, round(at_least / max(seconds, 1e-9))))
