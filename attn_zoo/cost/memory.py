"""Memory of a step, and the largest batch that a budget of memory holds."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """Largest number of bytes PyTorch's allocator held at once during ``step``, above what it held before.

    On CUDA that is the caching allocator's own figure. On a CPU it is the running sum of every
    allocation and release that the profiler saw, temporaries inside operators included; the
    profiler slows the step down, so time another one.
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


def resident_peak_bytes(step: Callable[[], object]) -> int:
    """Bytes by which ``step`` raises the highest resident size of this process above its present size."""
    before = psutil.Process().memory_info().rss
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux forgets the highest size so far
    except OSError:
        step()
        return max(0, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    step()
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return max(0, 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) - before)


def by_trying(fits: Callable[[int], bool], guess: int = 1, limit: int = 2**20) -> int:
    """Largest batch up to ``limit`` that ``fits``; 0 when a batch of one does not fit.

    From ``guess`` on in steps that double, up or down, until the edge is passed, then by bisection. Memory must grow with
    the batch, so that everything below a batch that fits does, too.
    """
    batch, step = min(max(guess, 1), limit), 1
    held, refused = (batch, limit + 1) if fits(batch) else (0, batch)
    while held and held < limit:  # up
        batch = min(limit, held + step)
        if not fits(batch):
            refused = batch
            break
        held, step = batch, 2 * step
    while not held and refused > 1:  # down
        batch = max(1, refused - step)
        if fits(batch):
            held = batch
            break
        refused, step = batch, 2 * step
    while refused - held > 1:
        batch = (held + refused) // 2
        held, refused = (batch, refused) if fits(batch) else (held, batch)
    return held


def by_line(batches: tuple[int, int], peaks: tuple[int, int], budget: int) -> int:
    """Largest batch within ``budget`` bytes by the line through the peaks of two batches; 0 when one sequence does not fit.

    Raises:
        ValueError: memory does not grow between them, so they say nothing about larger ones.
    """
    (small, large), (low, high) = batches, peaks
    if large <= small or high <= low:
        raise ValueError(f"memory must grow with the batch; got {low} bytes at {small} and {high} at {large}")
    slope = (high - low) / (large - small)
    return max(0, int((budget - low + slope * small) // slope))
