"""Base classes of experiments of ``attn-zoo measure``: their keys on the command line, and what they measure of each cell."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import torch

from attn_zoo.bench.bench import BACKENDS, PRECISIONS, Bench
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.bench.workers import WorkerError
from attn_zoo.checks import check_number, check_whole
from attn_zoo.contract import UnsupportedError, choose_implementation, unavailable
from attn_zoo.count.subjects import Subject, build_module, geometry_of, random_inputs
from attn_zoo.registry import attention_options, card, stated_options
from attn_zoo.rows import RowName, option, rows_of

KINDS: Mapping[str, str] = {"forward": "forward", "training": "forward + backward"}
"""Kinds of step, with a description of each."""

ROWS = "mechanisms: NAME, NAME:IMPLEMENTATION or NAME[OPTION=VALUE,...], such as linformer[projected_length=256]"
"""Help text of the key ``attention``."""

COUNTS = ("dim", "heads", "depth", "rounds", "sequences", "tokens", "length")
ABOVE_ZERO = ("seconds", "time_limit", "memory_gib")
LISTS = ("lengths", "projected_lengths")
LIMITS = ("output", "read", "plot", "seconds", "time_limit")
"""Keys that may change when an interrupted measurement is continued."""

Ask = Callable[..., Any]
"""Function that calls a method of the object in the worker process. Its arguments are the name and the arguments of the method."""

Values = Mapping[str, float | None]
"""Measured values by quantity, such as ``seconds`` or ``peak_bytes``."""


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


def attention_cells(texts: Sequence[str]) -> list[Cell]:
    """Return a cell (case to measure) for each mechanism that is named in texts such as ``linformer[projected_length=256]``. Its
    label leaves out options with default values. An experiment sets the kind of step and the length of each cell.

    Raises:
        UnknownNameError: no such mechanism, implementation or option.
        ValueError: a text does not have this form, two texts describe the same configuration, there is no text, or an option
            breaks its rule.
    """
    found = []
    for row in rows_of(texts):
        entry = card(row.attention)
        defaults, options = stated_options(entry, {}), stated_options(entry, row.options)
        changed = {key: value for key, value in options.items() if defaults.get(key) != value}
        label = str(RowName(row.attention, changed, row.implementation))
        found.append(Cell(label, "", 0, subject=Subject(row.attention, options, row.implementation)))
    return found


def softmax_cells(device: str) -> list[Cell]:
    """Return softmax as a baseline: one cell (case to measure) for the implementation with all n × n weights in memory, and one
    for each fused implementation on the device. An experiment sets the kind of step and the length of each cell."""
    cells = [Cell("softmax:eager", "", 0, role="materialised", subject=Subject("softmax", {}, "eager"))]
    for backend in BACKENDS if device == "cuda" else [None]:
        label = "softmax:sdpa" if backend is None else f"softmax:sdpa ({backend})"
        cells.append(Cell(label, "", 0, role="sdpa", subject=Subject("softmax", {}, "sdpa", backend)))
    return cells


def memory(ask: Ask, cell: Cell) -> Values:
    """Measure the bytes that are allocated before a step, and the peak of the additional bytes during the step."""
    return {f"{what}_bytes": ask(what, cell.kind, cell.batch, cell.length) for what in ("held", "peak")}


def largest_batch(budget: int, device: str, tokens: int, ask: Ask, cell: Cell) -> Values:
    """Find the largest number of examples whose step fits into ``budget`` bytes. On CUDA, batches are tried. On a CPU, the memory
    of two batches is extrapolated linearly: of about ``tokens`` tokens, at least one example, and of twice as many.

    Raises:
        WorkerError: a batch could not be measured, or the larger one does not need more memory.
    """
    if device == "cuda":
        return {"largest_batch": ask("largest_batch", cell.kind, cell.length, budget)}
    batch = max(1, tokens // cell.length)
    low, high = (sum(ask(what, cell.kind, n, cell.length) for what in ("held", "peak")) for n in (batch, 2 * batch))
    if high <= low:
        raise WorkerError("failed", f"{2 * batch} examples need {high} bytes, which is not more than {batch} need ({low})")
    slope = (high - low) / batch
    return {"largest_batch": max(0, int((budget - low + slope * batch) // slope))}


@dataclass
class Experiment:
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
    preloaded: ClassVar[Sequence[str]] = ()
    """Modules that are imported once, before worker processes are forked."""

    def __post_init__(self) -> None:
        if (device := getattr(self, "device", None)) is not None:
            self.device = resolve_device(device)
            for key, value in self.device_defaults[self.device].items():
                if getattr(self, key) is None:
                    setattr(self, key, copy.copy(value))
        given = {name: value for name, value in asdict(self).items() if value is not None}
        for names, check in ((COUNTS, check_whole), (ABOVE_ZERO, partial(check_number, above=0))):
            for name in filter(given.__contains__, names):
                check(name, given[name])
        for name in filter(given.__contains__, LISTS):
            values = given[name]
            if not values or min(values) < 1 or len(set(values)) < len(values):
                raise ValueError(f"{name} must be a list of different integers, each at least 1; got {list(values)}")
        if given.get("rounds", self.fewest_rounds) < self.fewest_rounds:
            raise ValueError(
                f"rounds= must be at least {self.fewest_rounds}, because fewer rounds give no interval; got {given['rounds']}"
            )
        if "heads" in given and given["dim"] % given["heads"]:
            raise ValueError(f"dim= must be a multiple of heads=; got dim={given['dim']} and heads={given['heads']}")
        if (precision := given.get("precision", "fp32")) not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {precision!r}")

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
        """Return all cells (cases to measure), in groups. A round times each cell of one group once, so times within a group can be
        compared."""
        raise NotImplementedError

    def once(self, cell: Cell) -> Mapping[str, Callable[[Ask, Cell], Values]]:
        """Return what is measured once of a cell, before the rounds: a function for each quantity. If a function fails, the
        quantity and all others of the cell are recorded as failed. Only a failure of ``largest_batch`` does not concern others."""
        return {}

    def timed(self, cells: Sequence[Cell]) -> list[Cell]:
        """Return the cells that are timed in rounds, for the cells of a group with what was measured once of them."""
        return list(cells)

    def time(self, ask: Ask, cell: Cell) -> Values:
        """Measure the seconds of a step of a cell in one round, and for training also the seconds of its backward pass."""
        taken = ask("parts", cell.kind, cell.batch, cell.length)
        return {"seconds": sum(taken), **({"backward_seconds": taken[1]} if len(taken) > 1 else {})}

    def visits(self, cells: Sequence[Cell], turn: int) -> list[Cell]:
        """Return the cells in the order in which the round with the number ``turn`` times them."""
        assert self.protocol is not None
        return self.protocol.ordered(cells, turn)

    def maker(self, cell: Cell) -> tuple[Any, ...]:
        """Return a class and its arguments. The worker process of a cell makes an object of this class, whose methods measure the
        cell."""
        raise NotImplementedError

    def process(self, cell: Cell) -> str:
        """Return the name of the worker process that measures a cell. Cells with the same name share a process. A process ends
        after a group of cells, unless this method returns its name for a cell of the next group."""
        return cell.label

    def refusal(self, cell: Cell) -> str | None:
        """Return the reason why a cell cannot be measured, or None if no reason is known before measuring."""
        return None

    def flops(self, cell: Cell) -> float:
        """Return a lower bound of the FLOPs of one step of a cell. Return 0 if no bound is known."""
        return 0.0

    @staticmethod
    def report(found: Measurement, format: str = "github") -> str:
        """Return a report of the measured values as text, in Markdown (``github``) or for the terminal."""
        raise NotImplementedError

    def draw(self, found: Measurement) -> None:
        """Draw a plot of the measured values into the file that the key ``plot`` names, if the experiment has a plot and ``plot``
        is not null."""


@dataclass
class LayerTiming(Experiment):
    """Base class of experiments that measure time and memory of layers in worker processes."""

    lengths: list[int] = option([512, 1024, 2048, 4096, 8192, 16384], "sequence lengths in tokens")
    dim: int = option(256, "width of the layer, in channels")
    heads: int = option(4, "number of heads")
    device: str = option("auto", "auto, cpu or cuda; auto is cuda if there is a GPU")
    precision: str = option("fp32", "precision of weights and inputs: fp32, bf16 or fp16")
    rounds: int = option(5, "number of rounds, each of which times everything once")
    repeat_seconds: float = option(0.2, "seconds for which a step is repeated in one timing")
    seconds: float | None = option(
        None,
        "time limit in seconds; if it is too short, the slowest measurements are left out (with lengths=, the shortest lengths)",
    )
    time_limit: float = option(120.0, "time limit of one request to a worker process, in seconds")

    scope: ClassVar[str] = "layer"
    """Scope of a timing, one of ``attn_zoo.count.subjects.SCOPES``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("repeat_seconds", self.repeat_seconds, 0)
        for subject in {cell.label: cell.subject for group in self.groups() for cell in group}.values():
            if subject and (why := unavailable(subject.implementation, self.torch_device, PRECISIONS[self.precision])):
                known = ", ".join(card(subject.attention).implementations)
                raise ValueError(
                    f"{subject.attention}:{subject.implementation} cannot run here: {why}. Choose another implementation ({known})"
                )

    @property
    def torch_device(self) -> torch.device:
        """Device on which steps are timed."""
        return torch.device("cuda", 0) if self.device == "cuda" else torch.device("cpu")

    @cached_property
    def protocol(self) -> TimingProtocol:
        """Rules of the timings, such as the number of rounds."""
        return TimingProtocol.on(self.device, seconds=self.repeat_seconds, rounds=self.rounds)

    def once(self, cell: Cell) -> Mapping[str, Callable[[Ask, Cell], Values]]:
        return {"peak_bytes": memory}

    def maker(self, cell: Cell) -> tuple[Any, ...]:
        assert cell.subject is not None
        what = (self.scope, cell.subject, self.dim, self.heads)
        how = (self.torch_device, self.precision, cell.subject.backend, self.protocol)
        return Bench, partial(build_module, *what), partial(random_inputs, *what), *how

    def refusal(self, cell: Cell) -> str | None:
        """Return the reason why the module of a cell cannot be built, or None. It is built on the ``meta`` device."""
        assert cell.subject is not None
        try:
            with torch.device("meta"):
                build_module(self.scope, cell.subject, self.dim, self.heads, cell.length)
        except ValueError as error:
            return f"refused: {error}"
        return None

    def chosen(self, attention: str, options: Mapping[str, Any], length: int) -> str:
        """Return the implementation that ``implementation="auto"`` chooses for a mechanism at a length on this device, or ``auto``
        if the mechanism does not support the length."""
        entry, geometry = card(attention), geometry_of(Subject(attention, options), self.dim, self.heads, length)
        try:
            made = attention_options(entry, geometry, options)
            return choose_implementation(entry, geometry, made, self.torch_device, PRECISIONS[self.precision])
        except UnsupportedError:
            return "auto"

    def flops(self, cell: Cell) -> float:
        assert cell.subject is not None
        entry, geometry = card(cell.subject.attention), geometry_of(cell.subject, self.dim, self.heads, cell.length)
        try:
            made = attention_options(entry, geometry, cell.subject.options)
        except ValueError:
            return 0.0
        return cell.batch * entry.cost(geometry, made).flops * (3 if cell.kind == "training" else 1)
