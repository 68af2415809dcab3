"""Timers, and statistics of repeated timings."""

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
"""Parts of a step, as functions. The first is called with None, and each of the others with the result of the one before it."""


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile. All three are equal if there is one value.

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
    """Return numerator / denominator for each round of timings. A disturbance that slows down a whole round cancels in the
    quotient. If one list is longer, its last rounds are left out."""
    return [a / b for a, b in zip(numerators, denominators, strict=False)]


def unstable(spread: tuple[float, float, float]) -> bool:
    """Return True if the interquartile range is more than ``UNSTABLE`` times the median. ``spread`` is the lower quartile, the
    median and the upper quartile."""
    low, middle, high = spread
    return high - low > UNSTABLE * middle


def fit_exponent(lengths: Sequence[float], values: Sequence[float]) -> float:
    """Return the exponent p of the power law value ~ length^p, fitted by least squares to the logarithms of lengths and values.
    Linear growth has p = 1, and quadratic growth p = 2."""
    x, y = [math.log(n) for n in lengths], [math.log(v) for v in values]
    return statistics.linear_regression(x, y).slope


def seconds_of(
    step: Callable[[], object], device: torch.device, at_least: float, warmup: int | None = None, most_repeats: int = MOST_REPEATS
) -> float:
    """Return the mean seconds of one ``step``. After ``warmup`` untimed steps, the step is repeated for about ``at_least``
    seconds, at most ``most_repeats`` times."""
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
    """Return the mean seconds of each part of a step. The step is repeated as in ``seconds_of``, and the time is read before and
    after each part."""
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
    """Return the seconds between two points in time. On CUDA, both events must have happened."""
    return end - start if isinstance(start, float) else start.elapsed_time(end) * 1e-3


def step_of(parts: Parts) -> Callable[[], None]:
    """Return a function that runs the parts of a step one after another."""

    def step() -> None:
        result = None
        for part in parts:
            result = part(result)

    return step


def warm_up(step: Callable[[], object], device: torch.device, steps: int | None = None) -> float:
    """Run ``steps`` warm-up steps, and return the seconds of the last one. The default is one step, or two on CUDA, because the
    first may compile."""
    seconds = 0.0
    for _ in range(steps or (2 if device.type == "cuda" else 1)):
        wait(device)
        started = time.perf_counter()
        step()
        wait(device)
        seconds = time.perf_counter() - started
    return seconds


def wait(device: torch.device) -> None:
    """Wait until a CUDA device has finished its work. On a CPU, return at once."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def repeats_for(seconds: float, at_least: float, most: int = MOST_REPEATS) -> int:
    """Return the number of repetitions, from 1 to ``most``, with which a step of ``seconds`` lasts about ``at_least`` seconds."""
    return max(1, min(most, round(at_least / max(seconds, 1e-9))))
