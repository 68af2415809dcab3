"""Times of every mechanism alone, in the implementation that ``auto`` chooses on a device, beside PyTorch's fused softmax."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import torch

from attn_zoo.bench.bench import Bench
from attn_zoo.bench.compare import quartiles, quotients
from attn_zoo.bench.experiment import KINDS, Ask, LayerTiming, Values
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.protocol import TimingProtocol
from attn_zoo.bench.tables import failures, joined, notes, reason
from attn_zoo.cli.measure import run_experiment
from attn_zoo.count.subjects import Subject, build_module, random_inputs
from attn_zoo.registry import attentions
from attn_zoo.rows import option
from attn_zoo.terminal import table

SOFTMAX = Cell("softmax:sdpa", "", 0, role="baseline", subject=Subject("softmax", {}, "sdpa"))


@dataclass
class Benches:
    """Timing of softmax and of one other mechanism in the same process, because starting a process on a GPU takes longer than a
    step.
    """

    dim: int
    heads: int
    device: torch.device
    precision: str
    protocol: TimingProtocol
    _benches: dict[str, tuple[Subject, Bench]] = field(default_factory=dict)

    def parts(self, role: str, subject: Subject, kind: str, batch: int, length: int) -> tuple[float, ...]:
        """Return the seconds of each part of a step, such as its forward pass; see ``Bench.parts``.

        Args:
            role: ``baseline`` for softmax; any other word for the mechanism that is timed beside it.
        """
        if self._benches.get(role, (None,))[0] != subject:
            what = ("mechanism", subject, self.dim, self.heads)
            build, inputs = partial(build_module, *what), partial(random_inputs, *what)
            bench = Bench(build, inputs, self.device, self.precision, protocol=self.protocol)
            self._benches[role] = subject, bench
        return self._benches[role][1].parts(kind, batch, length)


@dataclass
class ZooTimes(LayerTiming):
    """Times of every mechanism alone, in the implementation that ``auto`` chooses on this machine, beside PyTorch's fused softmax.

    A mechanism and softmax are timed in the same rounds.
    """

    attention: list[str] = option([], "names of mechanisms; all if empty")
    lengths: list[int] = option([1024, 4096, 16384, 65536], "lengths")
    tokens: int = option(65536, "tokens of a step, a batch of max(1, tokens // n) sequences")
    dim: int = option(512, "width of all heads together")
    heads: int = option(8, "heads")
    precision: str = option("bf16", "fp32, bf16 or fp16, of the inputs")
    rounds: int = option(3, "rounds, each a timing of softmax and one of the mechanism")
    repeat_seconds: float = option(0.02, "seconds that a timing covers by repeating its step")
    time_limit: float = option(60.0, "seconds that one request may take")

    scope: ClassVar[str] = "mechanism"

    def __post_init__(self) -> None:
        self.attention = self.attention or list(attentions())
        super().__post_init__()

    def groups(self) -> list[list[Cell]]:
        return [
            [
                replace(cell, kind=kind, length=n, batch=max(1, self.tokens // n), group=name)
                for cell in (SOFTMAX, Cell(name, "", 0, subject=Subject(name, {}, self.chosen(name, {}, n))))
                for kind in KINDS
            ]
            for n in self.lengths
            for name in self.attention
        ]

    def once(self, cell: Cell) -> Mapping[str, Callable[[Ask, Cell], Values]]:
        return {}

    def time(self, ask: Ask, cell: Cell) -> Values:
        return {"seconds": sum(ask("parts", cell.role, cell.subject, cell.kind, cell.batch, cell.length))}

    def process(self, cell: Cell) -> str:
        return "all"

    def maker(self, cell: Cell) -> tuple[Any, ...]:
        return Benches, self.dim, self.heads, self.torch_device, self.precision, self.protocol

    @staticmethod
    def report(found: Measurement, format: str = "github") -> str:
        lengths = sorted({cell.length for cell in found.cells})
        trained = {(cell.role, cell.group, cell.length): cell for cell in found.cells if cell.kind == "training"}
        rows = []
        for name in dict.fromkeys(cell.group for cell in found.cells):
            pairs = [[trained.get((role, name, n)) for role in ("mechanism", "baseline")] for n in lengths]
            taken = next((own.subject.implementation for own, _ in pairs if own and own.subject), "-")
            rows.append([name, taken, *(_times(*pair) for pair in pairs)])
        settings = found.settings
        what = (
            f"Seconds of a training step divided by those of fused softmax: width {settings['dim']}, {settings['heads']} heads, "
            f"{settings['precision']}, batches of max(1, {settings['tokens']} // n)"
        )
        times = table(["attention", "auto took", *(f"{n:,}" for n in lengths)], rows, format, left=range(2))
        return joined(found, times, notes(found, what, "zoo_times", before=failures(found.cells, KINDS)))


def all_timed(found: Measurement) -> bool:
    """Return True if every mechanism was timed wherever it supports the length."""
    return all(why.startswith("refused") for cell in found.cells for why in cell.failures.values())


def _times(own: Cell | None, softmax: Cell | None) -> str:
    if own is None or softmax is None:
        return "-"
    taken = quotients(own.all("seconds"), softmax.all("seconds"))
    return f"{quartiles(taken)[1]:.2f}" if taken else reason(own, "seconds")


if __name__ == "__main__":
    raise SystemExit(run_experiment("zoo_times", ZooTimes, sys.argv[1:]))
