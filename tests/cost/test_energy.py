"""Energy: RAPL's counters in folders like Linux's, NVML by a module like its own, and reasons where there is none."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from attn_zoo.cost import energy
from attn_zoo.cost.energy import EnergyMeter, NotMeasured, energy_meter, joules_of

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)

RANGE = 262_143_328_850


def zone(root: Path, folder: str, name: str, microjoules: int, most: int = RANGE) -> Path:
    here = root / folder
    here.mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", microjoules), ("max_energy_range_uj", most)):
        (here / file).write_text(f"{text}\n", encoding="ascii")
    return here / "energy_uj"


def meter_of(root: Path) -> EnergyMeter:
    meter = energy_meter(CPU, root)
    assert isinstance(meter, EnergyMeter)
    return meter


def test_packages_and_their_memory_are_added_up_and_nothing_is_counted_twice(tmp_path):
    first = zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 500_000)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 10)
    second = zone(tmp_path, "intel-rapl:1", "package-1", 7)
    zone(tmp_path, "intel-rapl:2", "psys", 9)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 1_000_000)
    meter = meter_of(tmp_path)
    assert meter.what == "RAPL: package-0 (intel-rapl:0), dram (intel-rapl:0:1), package-1 (intel-rapl:1)"
    before = meter.counters()
    first.write_text("3500000\n", encoding="ascii")
    memory.write_text("250010\n", encoding="ascii")
    second.write_text("1000007\n", encoding="ascii")
    assert meter.joules(before, meter.counters(), 1.0) == pytest.approx(2.5 + 0.25 + 1.0)


def test_a_counter_that_went_round_goes_on_counting(tmp_path):
    counter = zone(tmp_path, "intel-rapl:0", "package-0", RANGE - 400_000)
    meter = meter_of(tmp_path)
    before = meter.counters()
    counter.write_text("600000\n", encoding="ascii")
    assert meter.joules(before, meter.counters(), 1.0) == pytest.approx(1.0)


def test_a_window_in_which_it_may_go_round_twice_is_refused(tmp_path):
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    zone(tmp_path, "intel-rapl:1", "package-1", 0, most=60 * 10**9)
    meter = meter_of(tmp_path)
    assert meter.joules((0, 0), (2_000_000, 0), 59.0) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="shorter than 60 s"):
        meter.joules((0, 0), (2_000_000, 0), 61.0)


def test_without_counters_the_reason_is_given(tmp_path, monkeypatch):
    nothing = energy_meter(CPU, tmp_path / "powercap")
    assert isinstance(nothing, NotMeasured) and "no RAPL counters" in nothing.reason
    zone(tmp_path, "intel-rapl:0:0", "core", 5)
    assert isinstance(energy_meter(CPU, tmp_path), NotMeasured), "cores are a part of a package, not all of it"
    zone(tmp_path, "intel-rapl:0", "package-0", 5)

    def refused(file: Path) -> int:
        raise PermissionError(13, "Permission denied", "energy_uj")

    monkeypatch.setattr(energy, "_number", refused)
    forbidden = energy_meter(CPU, tmp_path)
    assert isinstance(forbidden, NotMeasured) and "may not read" in forbidden.reason


def test_damaged_counters_are_no_figure(tmp_path):
    zone(tmp_path, "intel-rapl:0", "package-0", 5).write_text("?\n", encoding="ascii")
    damaged = energy_meter(CPU, tmp_path)
    assert isinstance(damaged, NotMeasured) and "cannot be read" in damaged.reason


class NVMLError(Exception):
    """As pynvml's."""


class FakeNvml(SimpleNamespace):
    """The part of pynvml that is used: millijoules of one GPU, found by its UUID."""

    def __init__(self, supported: bool = True) -> None:
        super().__init__(NVMLError=NVMLError, supported=supported, millijoules=123_000, asked=None)

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked = uuid
        return "handle"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if not self.supported:
            raise NVMLError("Not Supported")
        assert handle == "handle"
        return int(self.millijoules)


@pytest.fixture
def one_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-34"))


def test_nvml_counts_millijoules_of_the_very_gpu(one_gpu, monkeypatch):
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    meter = energy_meter(GPU)
    assert isinstance(meter, EnergyMeter) and nvml.asked == "GPU-12-34"
    before = meter.counters()
    nvml.millijoules += 4_500
    assert meter.joules(before, meter.counters(), 1.0) == pytest.approx(4.5)


def test_without_nvml_the_reason_is_given(one_gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(supported=False))
    old = energy_meter(GPU)
    assert isinstance(old, NotMeasured) and "Not Supported" in old.reason
    monkeypatch.setitem(sys.modules, "pynvml", None)
    missing = energy_meter(GPU)
    assert isinstance(missing, NotMeasured) and "nvidia-ml-py" in missing.reason


def test_joules_are_of_one_step_without_those_that_warm_up(monkeypatch):
    spent = {"joules": 0}
    monkeypatch.setattr(energy, "warm_up", lambda step, device, steps: [step() for _ in range(steps)] and 0.5)

    meter = EnergyMeter("scripted", lambda: (spent["joules"],), 1.0)

    def step() -> None:
        spent["joules"] += 3

    assert joules_of(step, CPU, meter, at_least=2.2, warmup=2) == 3.0
    assert spent["joules"] == 3 * (2 + 5), "2.2 s take five steps of half a second"
