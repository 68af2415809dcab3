"""What the measurement of crossovers covers: layers, lengths, sizes and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from attn_zoo.cost.bench import BACKENDS, PRECISIONS, Subject
from attn_zoo.cost.compare import fewest_rounds
from attn_zoo.cost.protocol import TimingProtocol

KINDS: Mapping[str, str] = {"forward": "forward", "training": "forward + backward"}
"""Directions as the bench names them, and in words."""

LENGTHS: Mapping[str, tuple[int, ...]] = {
    "cpu": tuple(2**power for power in range(8, 15)),
    "cuda": tuple(2**power for power in range(8, 17)),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A layer in the comparison: ``role`` is ``materialised``, ``sdpa`` or ``mechanism``."""

    role: str
    label: str
    subject: Subject


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured and how.

    Raises:
        ValueError: a value breaks its rule.
    """

    device: str
    mechanisms: tuple[Entry, ...]
    lengths: tuple[int, ...]
    dim: int
    heads: int
    precision: str
    seconds: float
    """For the whole measurement; what does not fit is stopped, the slowest first."""
    time_limit: float
    """Seconds that one request to a layer's process may take."""
    protocol: TimingProtocol
    """``rounds`` are taken where they fit, and never fewer than an interval needs."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is one of {', '.join(PRECISIONS)}; got {self.precision!r}")
        if self.heads < 1 or self.dim < 1 or self.dim % self.heads:
            raise ValueError(f"dim must be divisible by heads, both at least 1; got dim={self.dim} and heads={self.heads}")
        if len(self.lengths) < 2 or min(self.lengths) < 1 or len(set(self.lengths)) < len(self.lengths):
            raise ValueError(f"lengths are at least two different whole numbers of at least 1; got {list(self.lengths)}")
        if self.protocol.rounds < fewest_rounds():
            raise ValueError(f"rounds must be at least {fewest_rounds()} for an interval; got {self.protocol.rounds}")
        if self.seconds <= 0 or self.time_limit <= 0:
            raise ValueError(f"seconds and time_limit must be above 0; got {self.seconds} and {self.time_limit}")

    def to_dict(self) -> dict[str, Any]:
        """As plain data, without the protocol, which stands beside it."""
        return {name: value for name, value in asdict(self).items() if name != "protocol"}

    def entries(self) -> tuple[Entry, ...]:
        """Softmax, materialised and by every fused back end of the device, then the mechanisms."""
        if self.device == "cuda":
            fused = [Entry("sdpa", f"softmax (sdpa, {name})", Subject("softmax", {}, "sdpa", name)) for name in BACKENDS]
        else:
            fused = [Entry("sdpa", "softmax (sdpa)", Subject("softmax", {}, "sdpa"))]
        return (Entry("materialised", "softmax (materialised)", Subject("softmax", {}, "eager")), *fused, *self.mechanisms)


def resolve_setting(given: Mapping[str, Any], mechanisms: tuple[Entry, ...]) -> Setting:
    """The setting that ``given`` means: what is None is the default of its device; ``device=auto`` is CUDA where there is one.

    Raises:
        ValueError: a value breaks its rule, or there is no such device here.
    """
    device = given["device"]
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"device is auto, cpu, or cuda where PyTorch finds a CUDA device; got {given['device']!r}")
    taken = {"rounds": given["rounds"], "seconds": given["repeat_seconds"], "seed": given["seed"]}
    return Setting(
        device=device,
        mechanisms=mechanisms,
        lengths=LENGTHS[device] if given["lengths"] is None else tuple(sorted(given["lengths"])),
        precision=given["precision"] or ("bf16" if device == "cuda" else "fp32"),
        protocol=TimingProtocol.on(device, energy_seconds=given["energy_seconds"], **taken),
        **{name: given[name] for name in ("dim", "heads", "seconds", "time_limit")},
    )
