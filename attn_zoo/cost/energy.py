"""Energy by counters that the hardware keeps: NVML's of a GPU, RAPL's of processors. Where there is none, the reason."""

from __future__ import annotations

import importlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attn_zoo.cost.timing import wait, warm_up

POWERCAP = Path("/sys/class/powercap")
"""Where Linux shows RAPL's counters (kernel documentation, power/powercap/powercap)."""

MOST_WATTS = 1000.0
"""No zone of RAPL draws more; what a counter holds divided by it is the longest window in which it cannot go round twice."""


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """No figure, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The counters of a meter at one moment."""

    counters: tuple[int, ...]
    """In the meter's own unit."""
    at: float
    """Seconds of a clock that never goes back."""


class EnergyMeter(ABC):
    """Counters of energy that only grow, up to where they start again.

    They count all that the device does, and what it draws at rest, too: of every process, not of this one alone.
    """

    what: str
    """Which counters they are, in words."""

    def read(self) -> Reading:
        """The counters now."""
        return Reading(self.counters(), time.perf_counter())

    @abstractmethod
    def counters(self) -> tuple[int, ...]:
        """The counters now, in the meter's own unit."""

    @abstractmethod
    def joules(self, before: Reading, after: Reading) -> float:
        """Energy between two readings.

        Raises:
            ValueError: a counter may have gone round more than once.
        """


@dataclass(frozen=True, slots=True)
class Zone:
    """A counter of RAPL: microjoules, from 0 up to ``most``, then from 0 again."""

    name: str
    path: Path
    most: int

    def read(self) -> int:
        return int(self.path.read_text(encoding="ascii"))


class Rapl(EnergyMeter):
    """The processors' counters, and the memory's where they are there."""

    def __init__(self, zones: tuple[Zone, ...]) -> None:
        self.zones = zones
        self.what = f"RAPL: {', '.join(zone.name for zone in zones)}"

    def counters(self) -> tuple[int, ...]:
        return tuple(zone.read() for zone in self.zones)

    def joules(self, before: Reading, after: Reading) -> float:
        seconds, longest = after.at - before.at, min(zone.most for zone in self.zones) * 1e-6 / MOST_WATTS
        if seconds > longest:
            raise ValueError(
                f"an energy window must be shorter than {longest:.0f} s, in which RAPL's counters may go round; "
                f"this one took {seconds:.0f} s"
            )
        changes = [late - early for early, late in zip(before.counters, after.counters, strict=True)]
        rounds = [zone.most if change < 0 else 0 for zone, change in zip(self.zones, changes, strict=True)]
        return 1e-6 * (sum(changes) + sum(rounds))


class Nvml(EnergyMeter):
    """The counter of one GPU, in millijoules since its driver was loaded (Volta and later)."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._read: Callable[[], int] = lambda: int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        self.what = "NVML: the whole GPU"

    def counters(self) -> tuple[int, ...]:
        return (self._read(),)

    def joules(self, before: Reading, after: Reading) -> float:
        return 1e-3 * (after.counters[0] - before.counters[0])


def energy_meter(device: torch.device, powercap: Path = POWERCAP) -> EnergyMeter | NotMeasured:
    """The meter of a device, read once to see that it can be, or why there is none.

    Args:
        powercap: folder of RAPL's zones.
    """
    return _nvml(device) if device.type == "cuda" else _rapl(powercap)


def joules_of(step: Callable[[], object], device: torch.device, meter: EnergyMeter, at_least: float, warmup: int) -> float:
    """Joules of one ``step``, of as many as cover ``at_least`` seconds, after ``warmup`` that are not counted.

    Raises:
        ValueError: the window was too long for the counters.
    """
    repeats = max(1, math.ceil(at_least / max(warm_up(step, device, warmup), 1e-9)))
    before = meter.read()
    for _ in range(repeats):
        step()
    wait(device)
    return meter.joules(before, meter.read()) / repeats


def _rapl(powercap: Path) -> EnergyMeter | NotMeasured:
    """Zones ``intel-rapl:N``, which AMD's processors have, too, and the memory's below them; ``intel-rapl-mmio`` counts again."""
    try:
        zones = tuple(
            Zone(f"{name} ({folder.name})", folder / "energy_uj", int((folder / "max_energy_range_uj").read_text(encoding="ascii")))
            for folder in sorted(powercap.glob("intel-rapl:*"))
            if (name := (folder / "name").read_text(encoding="ascii").strip()).startswith(("package", "dram"))
        )
        for zone in zones:
            zone.read()
    except PermissionError as error:
        return NotMeasured(f"RAPL's counters are there, but this user may not read them ({error.filename}); let the user read them")
    except (OSError, ValueError) as error:
        return NotMeasured(f"RAPL's counters cannot be read ({error})")
    if not zones:
        return NotMeasured(f"this machine shows no RAPL counters ({powercap} has no zone of a processor)")
    return Rapl(zones)


def _nvml(device: torch.device) -> EnergyMeter | NotMeasured:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return NotMeasured("a GPU's energy is read by the package nvidia-ml-py, which is not installed; install the extra energy")
    try:
        nvml.nvmlInit()
        # By its own number: CUDA_VISIBLE_DEVICES may have given it another one here than NVML has for it.
        meter = Nvml(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}"))
        meter.read()
    except nvml.NVMLError as error:
        return NotMeasured(f"NVML gives no energy of this GPU ({error})")
    return meter
