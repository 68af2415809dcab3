"""Base class of experiments that measure the time of layers in worker processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import psutil
import torch

from attn_zoo.bench.bench import BACKENDS, PRECISIONS, Bench
from attn_zoo.bench.grid import Grid
from attn_zoo.bench.measurement import Cell
from attn_zoo.bench.probes import MEMORY, SECONDS, Probe
from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.bench.workers import MEMORY_SHARE
from attn_zoo.contract import UnsupportedError, choose_implementation, unavailable
from attn_zoo.count.rigs import Rig, Sizes, Subject, rig_for
from attn_zoo.registry import attention_options, card, stated_options
from attn_zoo.rows import RowName, option, rows_of

KINDS: Mapping[str, str] = {"forward": "forward", "training": "forward + backward"}
"""Kinds of step, with a description of each."""

HELD_MATRICES = {"forward": 2, "training": 3}
"""Number of length × length matrices per head that softmax without fusion needs at once. In a forward step they are the scores and
the weights. In a training step they are the weights and the gradients of weights and scores."""


def subjects_of(texts: Sequence[str]) -> dict[str, Subject]:
    """Return a dictionary of the mechanisms that are named in texts such as ``linformer[projected_length=256]``, with their options
    and implementations. The keys of the dictionary are labels for tables. Options whose default depends on the length are left out
    unless a text states them.

    Raises:
        UnknownNameError: no such mechanism, implementation or option.
        ValueError: a text does not have this form, two texts describe the same configuration, there is no text, or an option
            breaks its rule.
    """
    found = {}
    for row in rows_of(texts):
        entry = card(row.attention)
        defaults, options = stated_options(entry, {}), stated_options(entry, row.options)
        changed = {key: value for key, value in options.items() if defaults.get(key) != value}
        found[str(RowName(row.attention, changed, row.implementation))] = Subject(row.attention, options, row.implementation)
    return found


def softmax_layers(device: str) -> list[Cell]:
    """Return softmax as a baseline: one cell (case to measure) for the implementation with all n × n weights in memory, and one
    for each fused implementation on the device. The caller sets the kind of step and the length of a cell."""
    cells = [Cell("softmax:eager", "", 0, role="materialised", subject=Subject("softmax", {}, "eager"))]
    for backend in BACKENDS if device == "cuda" else [None]:
        label = "softmax:sdpa" if backend is None else f"softmax:sdpa ({backend})"
        cells.append(Cell(label, "", 0, role="sdpa", subject=Subject("softmax", {}, "sdpa", backend)))
    return cells


@dataclass
class AttentionRows:
    """Key ``attention`` of an experiment: a list of mechanisms with their options, such as ``linformer[projected_length=256]``."""

    attention: list[str] = option(
        ["softmax", "linformer", "performer", "longformer", "reformer"],
        "mechanisms: NAME, NAME:IMPLEMENTATION or NAME[OPTION=VALUE,...], such as linformer[projected_length=256]",
    )

    @cached_property
    def layers(self) -> list[Cell]:
        """One cell (case to measure) for each mechanism in ``attention``. An experiment sets the kind of step and the length of
        each cell."""
        return [Cell(row, "", 0, subject=subject) for row, subject in subjects_of(self.attention).items()]


@dataclass
class Timed(Grid):
    """Keys on the command line of all experiments that measure the time of layers."""

    lengths: list[int] = option([512, 1024, 2048, 4096, 8192, 16384], "sequence lengths in tokens")
    dim: int = option(256, "width of the layer, in channels")
    heads: int = option(4, "number of heads")
    device: str = option("auto", "auto, cpu or cuda; auto is cuda if there is a GPU")
    precision: str = option("fp32", "precision of weights and inputs: fp32, bf16 or fp16")
    rounds: int = option(5, "number of rounds, each of which times everything once")
    order: str = option("shuffled", "order within a round: shuffled, 'in turn' or 'there and back'")
    seed: int = option(1, "seed of the shuffled order")
    repeat_seconds: float = option(0.2, "seconds for which a step is repeated in one timing")
    allocator: str = option(
        "default", "setting of the memory allocator glibc malloc: default, or keep (large tensors cause no page faults)"
    )
    seconds: float | None = option(
        None,
        "time limit in seconds; if it is too short, the slowest measurements are left out (with lengths=, the shortest lengths)",
    )
    time_limit: float = option(120.0, "time limit of one request to a worker process, in seconds")

    module_level: ClassVar[str] = "layer"
    """Scope of a timing: ``mechanism``, ``layer`` or ``block`` (see ``attn_zoo.count.rigs``)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.protocol.digest()  # making the protocol checks its values
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
        names = ("rounds", "order", "seed", "allocator")
        return TimingProtocol.on(self.device, seconds=self.repeat_seconds, **{name: getattr(self, name) for name in names})

    def once(self, cell: Cell) -> Sequence[Probe]:
        return (MEMORY,)

    def each(self, cell: Cell) -> Sequence[Probe]:
        return (SECONDS,)

    def rig(self, cell: Cell) -> Rig:
        """Return the functions that make the module and its inputs for a case (``cell``)."""
        assert cell.subject is not None
        return rig_for(self.module_level, cell.subject, Sizes(self.dim, self.heads))

    def chosen(self, attention: str, options: Mapping[str, Any], length: int) -> str:
        """Return the implementation that ``implementation="auto"`` chooses for a mechanism at a length on this device, or ``auto``
        if the mechanism does not support the length."""
        entry, geometry = card(attention), Sizes(self.dim, self.heads).geometry(length)
        try:
            made = attention_options(entry, geometry, options)
            return choose_implementation(entry, geometry, made, self.torch_device, PRECISIONS[self.precision])
        except UnsupportedError:
            return "auto"

    def flops(self, cell: Cell) -> float:
        assert cell.subject is not None
        entry, geometry = card(cell.subject.attention), Sizes(self.dim, self.heads).geometry(cell.length)
        try:
            made = attention_options(entry, geometry, cell.subject.options)
        except (ValueError, UnsupportedError):
            return 0.0
        return cell.batch * entry.cost(geometry, made).flops * (3 if cell.kind == "training" else 1)

    def maker(self, cell: Cell) -> tuple[Any, ...]:
        assert cell.subject is not None
        rig = self.rig(cell)
        return Bench, rig.build, rig.inputs, self.torch_device, self.precision, cell.subject.backend, self.protocol

    def refusal(self, cell: Cell) -> str | None:
        """Return the reason why a case (``cell``) cannot be measured (its module cannot be built, or a step cannot fit into
        memory), or None. The module is built on the ``meta`` device."""
        try:
            with torch.device("meta"):
                self.rig(cell).build(cell.length)
        except (ValueError, UnsupportedError) as error:
            return f"refused: {error}"
        return None if (why := self.excess(cell)) is None else f"OOM: {why}"

    def excess(self, cell: Cell) -> str | None:
        """Return the reason why a step cannot fit into memory, or None if it may fit. No step is run."""
        least, memory = self.least_bytes(cell), device_memory(self.device)
        return (
            f"a step needs at least {least} bytes, as computed from its sizes, but only {memory} are available"
            if least > memory
            else None
        )

    def least_bytes(self, cell: Cell) -> int:
        """Return a lower bound of the bytes of a step. For softmax with all weights in memory, it is the size of two matrices of
        length × length per example and head, or of three in a training step. For everything else it is 0."""
        subject = cell.subject
        if subject is None or (subject.attention, subject.implementation) != ("softmax", "eager"):
            return 0
        return HELD_MATRICES[cell.kind] * cell.batch * self.heads * cell.length**2 * PRECISIONS[self.precision].itemsize


def device_memory(device: str) -> int:
    """Return the number of bytes that a process may allocate on the device."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return int(MEMORY_SHARE * psutil.virtual_memory().total)
