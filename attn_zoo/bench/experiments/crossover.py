"""Experiment ``crossover``: the length from which each mechanism costs less than softmax attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from attn_zoo.bench.compare import METHOD, fewest_rounds
from attn_zoo.bench.crossover_analysis import BASELINES, QUANTITIES, baseline, compared, crossover, labels, value
from attn_zoo.bench.crossover_plot import plot_crossover
from attn_zoo.bench.measurement import Cell, Figures, Measurement
from attn_zoo.bench.tables import conditions, failures, joined
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

    attentions: list[str] = option(
        ["linformer", "performer", "longformer", "reformer"], "mechanisms to compare with softmax, which is always measured"
    )
    # Null until the device is known.
    lengths: list[int] | None = option(None, "sequence lengths in tokens (cpu: 256 to 16384, cuda: 256 to 65536)")  # type: ignore[assignment]  # None: by level or device
    precision: str | None = option(None, "fp32, bf16 or fp16 (cuda: bf16, cpu: fp32)")  # type: ignore[assignment]  # None: by level or device
    rounds: int = option(21, "largest number of rounds, each of which times everything once; if time is short, at least 6")
    repeat_seconds: float = option(0.05, "seconds for which a step is repeated in one timing")
    seconds: float | None = option(540.0, "time limit of the whole measurement, in seconds")
    time_limit: float = option(60.0, "time limit of one request to a worker process, in seconds")
    plot: str | None = option(None, "also draw the crossovers into this .svg or .png file (needs the extra plots)")

    device_defaults: ClassVar = {
        "cpu": {"lengths": [2**power for power in range(8, 15)], "precision": "fp32"},
        "cuda": {"lengths": [2**power for power in range(8, 17)], "precision": "bf16"},
    }
    fewest_rounds: ClassVar[int] = fewest_rounds()
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
                "attentions= must name a mechanism other than softmax, because every mechanism is compared with softmax. Add a "
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
        return joined(found, table(head, rows, format, left=(0, 1)), failures(points, KINDS), _method(found, points))

    def draw(self, found: Measurement) -> None:
        if self.plot is not None:
            plot_crossover(found, Path(self.plot))


def _cell(points: Sequence[Figures], label: str, role: str, kind: str, quantity: str) -> str:
    found = crossover(points, label, role, kind, quantity)
    return "not measured" if found is None else found.describe()


def _method(found: Measurement, points: Sequence[Figures]) -> str:
    grid = found.grid
    lengths = ", ".join(f"{n:,}" for n in sorted({p.cell.length for p in points}))
    rounds = sorted({len(p.all("seconds")) for p in points if p.all("seconds")})
    taken = " to ".join(str(count) for count in dict.fromkeys((rounds[0], rounds[-1]))) if rounds else "No"
    return (
        "The table has the length from which one layer with its projections costs less than softmax attention, at this length and "
        f"at every greater compared length. The layer has width {grid['dim']} and {grid['heads']} heads, and runs one sequence in "
        f"{grid['precision']}. Lengths are {lengths}. Brackets have a 95 % interval. At each length, the comparison is "
        f"the {METHOD}. Between lengths, the median and both bounds are interpolated linearly in log-log. The interval does not "
        "include the variation between processes, up to about 1 %, which depends on their place in memory. "
        f"{taken} rounds were taken; a length with fewer than {fewest_rounds()} is not compared. Memory is what is held before a "
        "step (parameters and tokens) plus the peak that PyTorch allocates in the step. It has no noise. If only one of the two "
        f"runs out of memory, it counts as more expensive. {_backends(points)}" + conditions(found)
    )


def _backends(points: Sequence[Figures]) -> str:
    """Return the fastest back end of PyTorch's fused attention for each kind of step and length, if there are several back ends."""
    if len(labels(points, "sdpa")) < 2:
        return ""
    said = []
    for kind, words in KINDS.items():
        best = [p for p in baseline(points, "sdpa", kind, "time") if value(p, "time") is not None]
        said.append(f"{words}: " + ", ".join(f"{p.cell.subject.backend} at {p.cell.length:,}" for p in best if p.cell.subject))
    return f"For SDPA, the fastest back end at each length is used ({'; '.join(said)}). "
