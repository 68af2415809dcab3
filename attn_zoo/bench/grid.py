"""Base class of experiments of ``attn-zoo measure``."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from attn_zoo.bench.bench import PRECISIONS
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.probes import Probe
from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.checks import check_number, check_whole
from attn_zoo.rows import option

COUNTS = ("dim", "heads", "depth", "rounds", "sequences", "tokens", "length", "repeats", "fresh_every", "steps")
ABOVE_ZERO = ("seconds", "time_limit", "memory_gib", "mlp_ratio")
NOT_BELOW_ZERO = ("repeat_seconds",)
LISTS = ("lengths", "projected_lengths")
LIMITS = ("output", "read", "plot", "seconds", "time_limit")
"""Keys that may change when an interrupted measurement is continued."""


def resolve_device(name: str) -> str:
    """Return ``cpu`` or ``cuda``. The name ``auto`` means ``cuda`` if there is a GPU, and ``cpu`` otherwise.

    Raises:
        ValueError: the name is not ``auto``, ``cpu`` or ``cuda``, or it is ``cuda`` and PyTorch finds no GPU.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda; got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda needs a GPU, but PyTorch finds none on this machine. Use device=cpu or device=auto")
    return name


@dataclass
class Grid:
    """Base class of an experiment of ``attn-zoo measure``. Its fields are keys of the command line. A new object checks their
    values, and fills in defaults that depend on the device.

    Raises:
        ValueError: a value breaks its rule.
        UnknownNameError: no such mechanism, option, implementation or task.
    """

    output: str | None = option(None, "also write the measured values to this JSON file, after each round")
    read: str | None = option(None, "measure nothing, and print the table of a file that output= wrote")

    device_defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cpu": {}, "cuda": {}}
    """Default values of keys that are null, for each device."""
    fewest_rounds: ClassVar[int] = 1
    fewest_lengths: ClassVar[int] = 1
    shortest_length: ClassVar[int] = 1
    slow_seconds: ClassVar[float] = math.inf
    """A step that takes more seconds than this is timed in three rounds at most."""
    preloaded: ClassVar[Sequence[str]] = ()
    """Modules that are imported once, before worker processes are forked."""
    whole_groups: ClassVar[bool] = False
    """True if the measurement ends when a case fails. Values are then saved only after a whole group of cases."""

    named: ClassVar[Collection[str]] = ()
    """Keys that the user gave on the command line."""

    def __post_init__(self) -> None:
        if (device := getattr(self, "device", None)) is not None:
            self.device = resolve_device(device)
            for key, value in self.device_defaults[self.device].items():
                if getattr(self, key) is None:
                    setattr(self, key, copy.copy(value))
        self._check_numbers()
        self._check_lists()
        dim, heads = getattr(self, "dim", None), getattr(self, "heads", None)
        if dim is not None and heads is not None and dim % heads:
            raise ValueError(f"dim= must be a multiple of heads=; got dim={dim} and heads={heads}")
        if (precision := getattr(self, "precision", None)) is not None and precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {precision!r}")

    def _check_numbers(self) -> None:
        above, least = partial(check_number, above=0), partial(check_number, least=0)
        for names, check in ((COUNTS, check_whole), (ABOVE_ZERO, above), (NOT_BELOW_ZERO, least)):
            for name in names:
                if (value := getattr(self, name, None)) is not None:
                    check(name, value)
        if (rounds := getattr(self, "rounds", self.fewest_rounds)) < self.fewest_rounds:
            raise ValueError(f"rounds= must be at least {self.fewest_rounds}, because fewer rounds give no interval; got {rounds}")

    def _check_lists(self) -> None:
        for name in LISTS:
            values = getattr(self, name, None)
            fewest, least = (self.fewest_lengths, self.shortest_length) if name == "lengths" else (1, 1)
            if values is not None and (len(values) < fewest or min(values) < least or len(set(values)) < len(values)):
                many = "at least two " if fewest > 1 else ""
                raise ValueError(f"{name} must be a list of {many}different integers, each at least {least}; got {list(values)}")

    def flops(self, cell: Cell) -> float:
        """Return a lower bound of the FLOPs of one step of a case (``cell``). Return 0 if no bound is known."""
        return 0.0

    def identity(self) -> dict[str, Any]:
        """Return the keys and values that must stay the same if an interrupted measurement is continued."""
        return {name: value for name, value in asdict(self).items() if name not in LIMITS}

    def facts(self) -> dict[str, Any]:
        """Return facts about this machine, such as versions of packages, to be saved with the measurement in addition to its
        environment."""
        return {}

    @property
    def protocol(self) -> TimingProtocol | None:
        """Rules of the timings, such as the number of rounds and of threads. None if the experiment times nothing."""
        return None

    def groups(self) -> list[list[Cell]]:
        """Return all cells (cases to measure), in groups. A round measures each cell of one group once, so costs within a group
        can be compared."""
        raise NotImplementedError

    def once(self, cell: Cell) -> Sequence[Probe]:
        """Return the probes that run once for a case (``cell``), before the rounds. A probe is the name of a quantity, such as
        peak memory, with the request to a worker process that measures it."""
        return ()

    def warm_up(self, cell: Cell) -> None:
        """Do work that this process does only once, such as imports, so that the time of the first measurement excludes it."""

    def timed(self, cells: Sequence[Cell], found: Measurement) -> list[Cell]:
        """Return the cases (``cells``) of a group that are measured in rounds. By default, cases that cannot be timed because of
        a failure before the rounds are left out.

        Args:
            cells: all cases of the group.
            found: values that were measured before the rounds.
        """
        return [cell for cell in cells if "seconds" not in found.of(cell).failures]

    def each(self, cell: Cell) -> Sequence[Probe]:
        """Return the probes that run for a case (``cell``) in every round. A probe is the name of a quantity, such as seconds,
        with the request to a worker process that measures it."""
        return ()

    def visits(self, cells: Sequence[Cell], turn: int) -> list[Cell]:
        """Return the cases (``cells``) in the order in which the round with the number ``turn`` measures them."""
        return list(cells) if self.protocol is None else self.protocol.ordered(cells, turn)

    def summarise(self, cells: Sequence[Cell], found: Measurement) -> None:
        """Replace the measured values of a group of cases (``cells``) by a summary, after all rounds of the group. By default, do
        nothing."""

    def maker(self, cell: Cell) -> tuple[Any, ...]:
        """Return a class and its arguments. The worker process of a case (``cell``) makes an object of this class, whose methods
        measure the case."""
        raise NotImplementedError

    def process(self, cell: Cell) -> str:
        """Return the name of the worker process that measures a case (``cell``). Cases with the same name share a process. A
        process ends after a group of cases, unless this method returns its name for a case of the next group."""
        return f"{cell.label} {cell.length} {cell.group}"

    def refusal(self, cell: Cell) -> str | None:
        """Return the reason why a case (``cell``) cannot be measured, or None if no reason is known before measuring."""
        return None

    @staticmethod
    def report(found: Measurement, format: str = "github") -> str:
        """Return a report of the measured values as text, in Markdown (``github``) or for the terminal."""
        raise NotImplementedError

    def draw(self, found: Measurement) -> None:
        """Draw a plot of the measured values into the file that the key ``plot`` names, if the experiment has a plot and ``plot``
        is not null."""

    @staticmethod
    def succeeded(found: Measurement) -> bool:
        """Return False if the command ``attn-zoo measure`` must end with exit status 1, and True otherwise."""
        return True
