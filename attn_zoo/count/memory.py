"""Memory of a step, and the largest batch that a budget of memory holds."""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """Return the peak memory: the most bytes that PyTorch's allocator held at once during ``step``, above what it held before.

    On CUDA that is the caching allocator's own figure. On a CPU it is the running sum of every
    allocation and release that the profiler saw, temporaries inside operators included; the
    profiler slows the step down, so time another step.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # read when the profiler first starts; it otherwise reports each start and stop
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    results = profiler.profiler.kineto_results  # the only place that keeps single allocations in order
    changes = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


def by_trying(fits: Callable[[int], bool], limit: int = 2**20) -> int:
    """Return the largest batch up to ``limit`` that ``fits``, by doubling and bisection; 0 if a batch of one does not fit.

    Memory must grow with the batch, so that everything below a batch that fits does, too.
    """
    held, refused = 0, 1
    while refused <= limit and fits(refused):
        held, refused = refused, 2 * refused
    return held + bisect.bisect_left(range(held + 1, min(refused, limit + 1)), True, key=lambda batch: not fits(batch))


def by_line(batches: tuple[int, int], peaks: tuple[int, int], budget: int) -> int:
    """Return the largest batch within ``budget`` bytes by the line through the peaks of two batches; 0 if one sequence does not
    fit.

    Raises:
        ValueError: memory does not grow between them, so they say nothing about larger ones.
    """
    (small, large), (low, high) = batches, peaks
    if large <= small or high <= low:
        raise ValueError(f"memory must grow with the batch; got {low} bytes at {small} and {high} at {large}")
    slope = (high - low) / (large - small)
    return max(0, int((budget - low + slope * small) // slope))
