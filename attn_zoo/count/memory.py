"""Memory of a step, and the largest batch that fits into a given memory."""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """Return the peak memory of ``step``: the most bytes that PyTorch's allocator held at once, minus those that it held before.

    On CUDA, the caching allocator reports this number. On a CPU, PyTorch's profiler records all allocations, also inside
    operators. The profiler slows the step down, so do not time the same step.
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
    """Return the largest batch up to ``limit`` for which ``fits`` returns True, found by doubling and bisection. Return 0 if a
    batch of one does not fit. If a batch fits, every smaller batch must fit too."""
    held, refused = 0, 1
    while refused <= limit and fits(refused):
        held, refused = refused, 2 * refused
    return held + bisect.bisect_left(range(held + 1, min(refused, limit + 1)), True, key=lambda batch: not fits(batch))


def by_line(batches: tuple[int, int], peaks: tuple[int, int], budget: int) -> int:
    """Return the largest batch within ``budget`` bytes, or 0 if one sequence does not fit. It is extrapolated linearly from the
    peak memory of two batches.

    Args:
        batches: numbers of sequences in the two batches.
        peaks: peak memory of the two batches in bytes.

    Raises:
        ValueError: the second batch is not larger than the first, or does not need more memory.
    """
    (small, large), (low, high) = batches, peaks
    if large <= small or high <= low:
        raise ValueError(
            f"memory must grow with the batch size; got {low} bytes for {small} sequences and {high} bytes for {large}"
        )
    slope = (high - low) / (large - small)
    return max(0, int((budget - low + slope * small) // slope))
