"""What the measurement of the Linformer paper's Table 3 covers: grid, layers, sizes and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_zoo.contract import Geometry, auto_may_take, auto_order, unavailable
from attn_zoo.cost.bench import BACKENDS, PRECISIONS, Subject
from attn_zoo.cost.linformer_table3.paper import LENGTHS, PROJECTED_LENGTHS
from attn_zoo.cost.protocol import TimingProtocol
from attn_zoo.registry import attention_options, card

KERNELS_UP_TO = 256
"""Projected keys of a head that our Triton kernels are made for; above, ``auto`` leaves them out."""

CUDA_DEFAULTS: Mapping[str, Any] = {
    "lengths": LENGTHS,
    "projected_lengths": PROJECTED_LENGTHS,
    "dim": 768,
    "heads": 12,
    "precision": "bf16",
    "tokens": 65536,
}
"""The paper's grid and width."""

CPU_DEFAULTS: Mapping[str, Any] = {
    "lengths": LENGTHS[:5],
    "projected_lengths": PROJECTED_LENGTHS[:3],
    "dim": 256,
    "heads": 4,
    "precision": "fp32",
    "tokens": 8192,
}
"""A grid that a CPU finishes in minutes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is measured and how.

    Raises:
        ValueError: a value breaks its rule.
    """

    device: str
    lengths: tuple[int, ...]
    projected_lengths: tuple[int, ...]
    dim: int
    heads: int
    precision: str
    tokens: int
    """Tokens of a timed step: a batch of tokens // length sequences, at least one; fewer where that runs out of memory."""
    rounds: int
    repeat_seconds: float
    """A timing repeats its step until so many seconds are covered."""
    memory_bytes: int
    """Budget within which the largest batch is sought."""
    time_limit: float
    """Seconds that one request to a cell's process may take."""
    sharing: str
    implementation: str
    """Of Linformer: a name on its card, or ``auto``."""

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision is one of {', '.join(PRECISIONS)}; got {self.precision!r}")
        if self.heads < 1 or self.dim < 1 or self.dim % self.heads:
            raise ValueError(f"dim must be divisible by heads, both at least 1; got dim={self.dim} and heads={self.heads}")
        for name in ("lengths", "projected_lengths"):
            values = getattr(self, name)
            if not values or min(values) < 1 or len(set(values)) < len(values):
                raise ValueError(f"{name} are different whole numbers of at least 1; got {list(values)}")
        for name in ("tokens", "rounds", "memory_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.time_limit <= 0 or self.repeat_seconds < 0:
            raise ValueError("time_limit must be above 0 and repeat_seconds not below 0")
        if not grid(self.lengths, self.projected_lengths):
            raise ValueError("no projected length is below any of the lengths, so there is nothing to compare")

    def batch(self, length: int) -> int:
        """Sequences of a timed step."""
        return max(1, self.tokens // length)

    def protocol(self) -> TimingProtocol:
        """How times are taken."""
        return TimingProtocol.on(self.device, rounds=self.rounds, order="there and back", seconds=self.repeat_seconds)

    def reduced(self) -> list[str]:
        """What this setting has less of than the paper's grid and width."""
        said = [f"lengths up to {max(self.lengths)} of {max(LENGTHS)}"] if max(self.lengths) < max(LENGTHS) else []
        if max(self.projected_lengths) < max(PROJECTED_LENGTHS):
            said.append(f"k up to {max(self.projected_lengths)} of {max(PROJECTED_LENGTHS)}")
        if self.dim < CUDA_DEFAULTS["dim"]:
            said.append(f"width {self.dim} of {CUDA_DEFAULTS['dim']}, {self.heads} heads of {CUDA_DEFAULTS['heads']}")
        return said


@dataclass(frozen=True, slots=True)
class Entry:
    """A layer in the table: ``role`` is ``materialised``, ``sdpa`` or ``linformer``."""

    role: str
    subject: Subject
    projected_length: int | None = None


def resolve_setting(given: Mapping[str, Any]) -> Setting:
    """The setting that ``given`` means: what is None is the default of its device; ``device=auto`` is CUDA where there is one.

    Raises:
        ValueError: a value breaks its rule, or there is no such device here.
    """
    device = given["device"]
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"device is auto, cpu, or cuda where PyTorch finds a CUDA device; got {given['device']!r}")
    defaults = CUDA_DEFAULTS if device == "cuda" else CPU_DEFAULTS
    chosen = {name: value if given.get(name) is None else given[name] for name, value in defaults.items()}
    rest = {name: given[name] for name in ("rounds", "repeat_seconds", "time_limit", "sharing", "implementation")}
    budget = int(given["memory_gib"] * 2**30)
    chosen |= {name: tuple(chosen[name]) for name in ("lengths", "projected_lengths")}
    setting = Setting(device=device, memory_bytes=budget, **chosen, **rest)
    for n in setting.lengths:
        entries(setting, n)
    return setting


def grid(lengths: Sequence[int], projected_lengths: Sequence[int]) -> list[tuple[int, int]]:
    """The cells of the table: every length with every projected length below it, as in the paper."""
    return [(n, k) for n in lengths for k in projected_lengths if k < n]


def entries(setting: Setting, length: int) -> list[Entry]:
    """The layers that are measured at one length, baselines first.

    Raises:
        UnknownNameError: Linformer has no such implementation.
        ValueError: Linformer has no such sharing.
    """
    fused = [Subject("softmax", {}, "sdpa", backend) for backend in (BACKENDS if setting.device == "cuda" else [None])]
    found = [Entry("materialised", Subject("softmax", {}, "eager")), *(Entry("sdpa", subject) for subject in fused)]
    for n, k in grid([length], setting.projected_lengths):
        options = {"projected_length": k, "sharing": setting.sharing}
        subject = Subject("linformer", options, _linformer_implementation(setting, n, options))
        found.append(Entry("linformer", subject, k))
    return found


def _linformer_implementation(setting: Setting, length: int, options: Mapping[str, Any]) -> str:
    """``auto`` is the first of ``auto_order`` that Linformer's card offers, the options allow and the device can run.

    The Triton kernels are for k up to ``KERNELS_UP_TO``.
    """
    linformer = card("linformer")
    geometry = Geometry(setting.heads, setting.dim // setting.heads, length, length, False)
    made = attention_options(linformer, geometry, options)
    large = options["projected_length"] > KERNELS_UP_TO
    device, auto = torch.device(setting.device), setting.implementation == "auto"
    order = [name for name in auto_order(device) if name != "triton" or not large]
    for name in order if auto else [setting.implementation]:
        runs = auto_may_take(name, device) if auto else unavailable(name, device) is None
        offered = name in linformer.implementations and runs
        if offered and linformer.build.refuses(name, geometry, made) is None:
            return name
    raise ValueError(
        f"implementation={setting.implementation} of linformer cannot run projected_length={options['projected_length']} on "
        f"{setting.device}; choose auto or another of {', '.join(linformer.implementations)}"
    )
