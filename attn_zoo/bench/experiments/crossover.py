"""Experiment ``crossover``: the length from which each mechanism costs less than softmax attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from attn_zoo.bench.compare import FEWEST_ROUNDS
from attn_zoo.bench.crossover_analysis import BASELINES, QUANTITIES, baseline, compared, crossover, labels, value
from attn_zoo.bench.crossover_plot import plot_crossover
from attn_zoo.bench.measurement import Cell, Figures, Measurement
from attn_zoo.bench.tables import failures, joined, notes
from attn_zoo.bench.timed import KINDS, AttentionRows, Timed, softmax_layers
from attn_zoo.plotting.theme import check_plot
from attn_zoo.rows import option
from attn_zoo.terminal import table


@dataclass
class Crossover(Timed, AttentionRows):
    """Length from which each mechanism costs less time or memory than softmax, with intervals. Softmax is measured in two ways:
    with all weights in memory (materialised), and fused.

    If the time limit is too short, some measurements are left out and marked: the shortest lengths if the command contains
    ``lengths=``, otherwise the slowest measurements. To measure them later, run the same command with the same output again.
    """

    attention: list[str] = option(
        ["linformer", "performer", "longformer", "reformer"], "mechanisms to compare with softmax, which is always measured"
    )
    # Null until the device is known.
    lengths: list[int] | None = option(None, "sequence lengths in tokens (cpu: 256 to 16384, cuda: 256 to 65536)")  # type: ignore[assignment]  # None: by level or device
    precision: str | None = option(None, "fp32, bf16 or fp16 (cuda: bf16, cpu: fp32)")  # type: ignore[assignment]  # None: by level or device
    rounds: int = option(21, "largest number of rounds, each of which times everything once; if time is short, at least 6")
    repeat_seconds: float = option(0.05, "seconds for which a step is repeated in one timing")
    seconds: float | None = option(540.0, "time limit of the whole measurement, in seconds")
    time_limit: float = option(60.0, "time limit of one request to a worker process, in seconds")
    plot: str | None = option(None, "also draw the crossovers into this .svg or .png file")

    device_defaults: ClassVar = {
        "cpu": {"lengths": [2**power for power in range(8, 15)], "precision": "fp32"},
        "cuda": {"lengths": [2**power for power in range(8, 17)], "precision": "bf16"},
    }
    fewest_rounds: ClassVar[int] = FEWEST_ROUNDS
    fewest_lengths: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plot is not None:
            check_plot(Path(self.plot))
        self.groups()

    def groups(self) -> list[list[Cell]]:
        mechanisms = [layer for layer in self.layers if layer.subject and layer.subject.attention != "softmax"]
        if not mechanisms:
            raise ValueError(
                "attention= must name a mechanism other than softmax, because every mechanism is compared with softmax. Add a "
                "mechanism"
            )
        layers = [*softmax_layers(self.device), *mechanisms]
        return [[replace(each, length=n, kind=kind) for each in layers for kind in KINDS] for n in sorted(self.lengths or ())]

    def process(self, cell: Cell) -> str:
        return cell.label

    @staticmethod
    def report(found: Measurement, format: str = "github") -> str:
        points = list(found.cells.values())
        columns = [(quantity, kind) for quantity in QUANTITIES for kind in KINDS]
        head = ["attention", "costs less than", *(f"{quantity}, {KINDS[kind]}" for quantity, kind in columns)]
        rows = [
            [label, words, *(_cell(points, label, role, kind, quantity) for quantity, kind in columns)]
            for label in compared(points)
            for role, words in BASELINES.items()
        ]
        return joined(found, table(head, rows, format, left=(0, 1)), _notes(found, points))

    def draw(self, found: Measurement) -> None:
        if self.plot is not None:
            plot_crossover(found, Path(self.plot))


def _cell(points: Sequence[Figures], label: str, role: str, kind: str, quantity: str) -> str:
    found = crossover(points, label, role, kind, quantity)
    return "not measured" if found is None else found.describe()


def _notes(found: Measurement, points: Sequence[Figures]) -> str:
    grid = found.grid
    what = f"One layer with its projections: width {grid['dim']}, {grid['heads']} heads, one sequence, {grid['precision']}"
    before = "\n".join(line for line in (failures(points, KINDS), _backends(points)) if line)
    return notes(found, what, "crossover", before=before)


def _backends(points: Sequence[Figures]) -> str:
    """Return the fastest back end of PyTorch's fused attention for each kind of step and length, if there are several back ends."""
    if len(labels(points, "sdpa")) < 2:
        return ""
    said = []
    for kind, words in KINDS.items():
        best = [p for p in baseline(points, "sdpa", kind, "time") if value(p, "time") is not None]
        said.append(f"{words}: " + ", ".join(f"{p.cell.subject.backend} at {p.cell.length:,}" for p in best if p.cell.subject))
    return f"- Fastest back end of SDPA: {'; '.join(said)}."
