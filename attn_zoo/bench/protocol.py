"""Rules of all timings, which are stored with every measurement."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import torch

from attn_zoo.bench.timing import MOST_REPEATS

Item = TypeVar("Item")

ORDERS: Mapping[str, str] = {
    "in turn": "in the same order each round (A B, A B)",
    "there and back": "in an order that is reversed after each round (A B, B A)",
    "shuffled": "in a new random order each round",
}
"""Orders in which a round times the subjects, with a description of each."""

_KEEP = str(2**35)  # bytes; more than any tensor here

ALLOCATORS: Mapping[str, Mapping[str, str]] = {
    "default": {},
    "keep": {"MALLOC_MMAP_THRESHOLD_": _KEEP, "MALLOC_TRIM_THRESHOLD_": _KEEP, "MALLOC_TOP_PAD_": str(64 * 2**20)},
}
"""Settings of glibc's allocator, as environment variables of worker processes. ``keep`` keeps freed memory. ``default`` returns
freed blocks of 32 MiB or more to the system, so each new block causes page faults."""

MOST_COPIES = 4096
"""Largest number of copies of the inputs that steps use in turn. To make more copies could take longer than the timed steps."""

CLOCKS: Mapping[str, tuple[str, str]] = {
    "cpu": ("time.perf_counter", "none needed: a step is done when its call returns"),
    "cuda": ("events on the stream", "once, after the last of the repetitions"),
}
"""Clock and method of synchronisation for each device."""


@dataclass(frozen=True, slots=True)
class TimingProtocol:
    """All settings of a timing, except the machine and the subject (what is timed).

    Raises:
        ValueError: a value breaks its rule.
    """

    device: str = "cpu"
    """``cpu`` or ``cuda``."""
    rounds: int = 5
    """Number of rounds. Each round gives one value for every subject."""
    order: str = "shuffled"
    """Order of the subjects in a round: a key of ``ORDERS``."""
    seed: int = 1
    warmup: int = 1
    """Number of untimed steps of a subject at the beginning of every round."""
    seconds: float = 0.2
    """Seconds for which a step is repeated in one timing. A step runs at least once."""
    most_repeats: int = MOST_REPEATS
    """Maximum number of repetitions of a step in one timing."""
    rotate_bytes: int = 0
    """Size in bytes of a cache that must not speed up a step. Steps use copies of the inputs in turn, and all copies together are
    larger than this cache. With 0, there is one copy."""
    threads: int | None = None
    """Number of PyTorch's threads on the CPU. None if it is unknown."""
    allocator: str = "default"
    """Memory allocator: a key of ``ALLOCATORS``."""

    def __post_init__(self) -> None:
        for name, known in (("device", CLOCKS), ("order", ORDERS), ("allocator", ALLOCATORS)):
            if getattr(self, name) not in known:
                raise ValueError(f"protocol.{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}")
        for name in ("rounds", "warmup", "most_repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"protocol.{name} must be at least 1; got {getattr(self, name)}")
        for name in ("seconds", "rotate_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"protocol.{name} must be at least 0; got {getattr(self, name)}")

    @classmethod
    def on(cls, device: str, **changes: Any) -> TimingProtocol:
        """Return the protocol for a device.

        On CUDA, there are two warm-up steps, because the first may compile, and ``rotate_bytes`` is the size of the L2 cache. On a
        CPU, ``threads`` is the number of threads of this process.

        Args:
            device: ``cpu``, or ``cuda`` if there is a GPU.
            **changes: fields with values that replace the default ones.
        """
        chosen: dict[str, Any] = {"device": device}
        if device == "cuda":
            chosen |= {"warmup": 2, "rotate_bytes": int(torch.cuda.get_device_properties(0).L2_cache_size)}
        else:
            chosen |= {"threads": torch.get_num_threads()}
        return cls(**(chosen | changes))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TimingProtocol:
        """Return the protocol from a dictionary that ``to_dict`` made. Entries that are not fields are ignored."""
        known = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the protocol as a dictionary, with the clock, the method of synchronisation and the digest."""
        clock, synchronisation = CLOCKS[self.device]
        return {**asdict(self), "clock": clock, "synchronisation": synchronisation, "digest": self.digest()}

    def digest(self) -> str:
        """Return a hash of all fields, as twelve hexadecimal digits."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that a timed process must have under this protocol."""
        return ALLOCATORS[self.allocator]

    def ordered(self, items: Sequence[Item], turn: int) -> list[Item]:
        """Return the items in their order in the round ``turn``, counted from 0. A shuffled order depends only on the seed and the
        round."""
        if self.order == "shuffled":
            return random.Random(f"{self.seed}/{turn}").sample(list(items), len(items))
        return list(reversed(items)) if self.order == "there and back" and turn % 2 else list(items)

    def copies(self, bytes_of_inputs: int) -> int:
        """Return the number of copies of the inputs that steps use in turn. ``bytes_of_inputs`` is the size of one copy."""
        if self.rotate_bytes == 0 or bytes_of_inputs == 0:
            return 1
        return min(MOST_COPIES, 1 + math.ceil(self.rotate_bytes / bytes_of_inputs))
