"""Energy from hardware counters: NVML for a GPU, RAPL for processors; or the reason why there is no counter."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from attn_zoo.cost.timing import wait, warm_up

POWERCAP = Path("/sys/class/powercap")
"""Folder of RAPL's counters on Linux (kernel documentation, power/powercap/powercap)."""

MOST_WATTS = 1000.0
"""Upper bound of a RAPL zone's power, in watts; range / power is the longest window with at most one wrap of the counter."""


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Result in place of a figure that cannot be measured."""

    reason: str


@dataclass(frozen=True, slots=True)
class EnergyMeter:
    """Energy counters, which only grow, except that they may wrap around to 0.

    They count all energy that the device draws, including idle power and the work of other processes.
    """

    what: str
    """Description of the counters."""
    counters: Callable[[], tuple[int, ...]]
    unit: float
    """Joules of one count."""
    ranges: tuple[int, ...] = ()
    """Value at which each counter wraps around to 0; empty where none does."""

    def joules(self, before: Sequence[int], after: Sequence[int], seconds: float) -> float:
        """Energy between two readings of the counters, ``seconds`` apart.

        Raises:
            ValueError: a counter may have wrapped more than once.
        """
        changes = [late - early for early, late in zip(before, after, strict=True)]
        if self.ranges:
            longest = min(self.ranges) * self.unit / MOST_WATTS
            if seconds > longest:
                raise ValueError(
                    f"an energy window must be shorter than {longest:.0f} s, or RAPL's counters may wrap around more than once; "
                    f"this one took {seconds:.0f} s; lower energy_seconds"
                )
            changes = [change % most for change, most in zip(changes, self.ranges, strict=True)]
        return self.unit * sum(changes)


def energy_meter(device: torch.device, powercap: Path = POWERCAP) -> EnergyMeter | NotMeasured:
    """Energy meter of a device, read once to check that it can be read, or the reason why there is none.

    Args:
        powercap: folder of RAPL's zones.
    """
    return _nvml(device) if device.type == "cuda" else _rapl(powercap)


def joules_of(step: Callable[[], object], device: torch.device, meter: EnergyMeter, at_least: float, warmup: int) -> float:
    """Joules of one ``step``, averaged over steps that cover ``at_least`` seconds, after ``warmup`` steps that are not counted.

    Raises:
        ValueError: the window was too long for the counters.
    """
    repeats = max(1, math.ceil(at_least / max(warm_up(step, device, warmup), 1e-9)))
    before, started = meter.counters(), time.perf_counter()
    for _ in range(repeats):
        step()
    wait(device)
    return meter.joules(before, meter.counters(), time.perf_counter() - started) / repeats


def _rapl(powercap: Path) -> EnergyMeter | NotMeasured:
    """Meter of RAPL zones ``intel-rapl:N`` (AMD's too) and their memory, without ``intel-rapl-mmio``, which counts the same."""
    zones: dict[str, Path] = {}
    try:
        for folder in sorted(powercap.glob("intel-rapl:*")):
            name = (folder / "name").read_text(encoding="ascii").strip()
            if name.startswith(("package", "dram")):
                zones[f"{name} ({folder.name})"] = folder
        if not zones:
            return NotMeasured(f"this machine shows no RAPL counters ({powercap} has no zone of a processor)")
        ranges = tuple(_number(folder / "max_energy_range_uj") for folder in zones.values())

        def microjoules() -> tuple[int, ...]:
            return tuple(_number(folder / "energy_uj") for folder in zones.values())

        microjoules()
    except PermissionError as error:
        return NotMeasured(f"RAPL's counters are there, but this user may not read them ({error.filename}); let the user read them")
    except (OSError, ValueError) as error:
        return NotMeasured(f"RAPL's counters cannot be read ({error})")
    return EnergyMeter(f"RAPL: {', '.join(zones)}", microjoules, 1e-6, ranges)


def _number(file: Path) -> int:
    return int(file.read_text(encoding="ascii"))


def _nvml(device: torch.device) -> EnergyMeter | NotMeasured:
    """Meter of one GPU, in millijoules since its driver was loaded (Volta and later)."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return NotMeasured("a GPU's energy is read by the package nvidia-ml-py, which is not installed; install the extra energy")
    try:
        nvml.nvmlInit()
        # By UUID, because CUDA_VISIBLE_DEVICES may have changed PyTorch's index of the GPU, but not NVML's.
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        meter = EnergyMeter("NVML: the whole GPU", lambda: (int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)),), 1e-3)
        meter.counters()
    except nvml.NVMLError as error:
        return NotMeasured(f"NVML gives no energy of this GPU ({error})")
    return meter
