"""Rules of all timings, which are stored with every measurement."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")

MOST_COPIES = 4096
"""Largest number of copies of the inputs that steps use in turn. To make more copies could take longer than the timed steps."""


@dataclass(frozen=True, slots=True)
class TimingProtocol:
    """All settings of a timing, except the machine and what is timed."""

    device: str = "cpu"
    """``cpu`` or ``cuda``."""
    rounds: int = 5
    """Number of rounds. Each round times every case once."""
    seed: int = 1
    """Seed of the random order of the cases in a round."""
    warmup: int = 1
    """Number of untimed steps of a case at the beginning of every round."""
    seconds: float = 0.2
    """Seconds for which a step is repeated in one timing. A step runs at least once."""
    most_repeats: int = 1000
    """Maximum number of repetitions of a step in one timing."""
    rotate_bytes: int = 0
    """Size in bytes of a cache that must not speed up a step. Steps use copies of the inputs in turn, and all copies together are
    larger than this cache. With 0, there is one copy."""
    threads: int | None = None
    """Number of PyTorch's threads on the CPU. None if it is unknown."""

    @classmethod
    def on(cls, device: str, **changes: Any) -> TimingProtocol:
        """Return the protocol for a device.

        On CUDA, there are two warm-up steps, because the first may compile, and ``rotate_bytes`` is the size of the L2 cache. On a
        CPU, ``threads`` is the number of threads of this process.

        Args:
            device: ``cpu``, or ``cuda`` if there is a GPU.
            **changes: fields with values that replace the default ones.
        """
        if device == "cuda":
            chosen = {"warmup": 2, "rotate_bytes": int(torch.cuda.get_device_properties(0).L2_cache_size)}
        else:
            chosen = {"threads": torch.get_num_threads()}
        return cls(device, **(chosen | changes))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TimingProtocol:
        """Return the protocol from a dictionary that ``to_dict`` made. Entries that are not fields are ignored."""
        known = {f.name for f in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of the protocol as a dictionary."""
        return asdict(self)

    def ordered(self, items: Sequence[Item], turn: int) -> list[Item]:
        """Return the items in their order in the round ``turn``, counted from 0. It depends only on the seed and the round."""
        return random.Random(f"{self.seed}/{turn}").sample(list(items), len(items))

    def copies(self, bytes_of_inputs: int) -> int:
        """Return the number of copies of the inputs that steps use in turn. ``bytes_of_inputs`` is the size of one copy."""
        if self.rotate_bytes == 0 or bytes_of_inputs == 0:
            return 1
        return min(MOST_COPIES, 1 + math.ceil(self.rotate_bytes / bytes_of_inputs))
