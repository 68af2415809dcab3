"""Experiment ``counted``: costs that are counted by formulas and from shapes of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from attn_zoo.bench.grid import Grid
from attn_zoo.bench.measurement import Cell, Figures, Measurement
from attn_zoo.bench.probes import Answer, Ask, Probe
from attn_zoo.bench.tables import binary, decimal, explained, joined, reason
from attn_zoo.bench.timed import AttentionRows
from attn_zoo.bench.workers import WorkerError
from attn_zoo.checks import check_text
from attn_zoo.contract import UnsupportedError
from attn_zoo.count.levels import QUANTITIES, Counted, count_level
from attn_zoo.count.models import setting_warnings
from attn_zoo.count.rigs import LEVELS, Sizes, Subject
from attn_zoo.registry import attention_options, card
from attn_zoo.rows import option
from attn_zoo.terminal import table

TITLES = {
    "flops": "FLOPs, forward",
    "backward_flops": "FLOPs, backward",
    "parameters": "Parameters",
    "activation_bytes": "Activations saved for the backward pass",
    "state_bytes": "Recurrent state",
}

KINDS = {"mechanism": "Mechanisms alone", "layer": "Layers with their projections", "block": "Blocks"}
"""Names of what is counted, by level."""


def _table(points: Sequence[Figures], softmax: Mapping[int, Figures], name: str, format: str) -> str:
    lengths = sorted({p.cell.length for p in points})
    cells = {(p.cell.label, p.cell.length): _cell(p, softmax[p.cell.length], name) for p in points}
    rows = [[label, *(cells[label, length] for length in lengths)] for label in dict.fromkeys(p.cell.label for p in points)]
    return table(["attention", *(f"{length:,}" for length in lengths)], rows, format)


def _cell(point: Figures, softmax: Figures, name: str) -> str:
    found, measure = point.one(name), softmax.one(name)
    if found is None:
        return reason(point, "flops")
    text = binary(found) if name.endswith("bytes") else decimal(found)
    times = found / measure if measure else None
    quotient = "" if times is None else f" ({times:.2g}×)" if times < 10 else f" ({times:,.0f}×)"
    return text + quotient + (" ≠" if f"{name}_by_pytorch" in point.values else "")


def _remarks(points: Sequence[Figures], grid: Mapping[str, Any]) -> list[str]:
    """Return disagreements of formula and PyTorch, warnings and refusals, each once with the lengths to which it applies."""
    lengths: dict[str, list[int]] = {}
    for point in points:
        label, told = point.cell.label, _warnings(point.cell, grid) if point.values else []
        for why in point.failures.values():
            kind, _, words = why.partition(": ")
            told.append(f"{label} is refused: {words}" if kind == "refused" else f"{label}: {kind}")
        for name, title in TITLES.items():
            if (counted := point.one(f"{name}_by_pytorch")) is not None:
                told.append(f"≠ {label}, {title}: the formula says {point.one(name):,}, PyTorch counts {counted:,}")
        for line in told:
            lengths.setdefault(line, []).append(point.cell.length)
    every = len({point.cell.length for point in points})
    where = {line: "every length" if len(at) == every else ", ".join(f"{n:,}" for n in at) for line, at in lengths.items()}
    return [f"{line} (at {at})" for line, at in where.items()]


def _warnings(cell: Cell, grid: Mapping[str, Any]) -> list[str]:
    assert cell.subject is not None
    geometry, entry = Sizes(grid["dim"], grid["heads"]).geometry(cell.length, grid["causal"]), card(cell.subject.attention)
    return list(setting_warnings(entry, geometry, attention_options(entry, geometry, cell.subject.options)))


BASELINE = Cell("softmax, the measure", "", 0, role="baseline", subject=Subject("softmax", {}, "eager"))


@dataclass
class CountedCost(Grid, AttentionRows):
    """FLOPs, parameters and bytes of the recurrent state, computed by formulas, and bytes of activations, counted by PyTorch.
    FLOPs and parameters are also counted by PyTorch, and differences from the formulas are marked."""

    level: str = option("mechanism", "what is counted: mechanism, layer (with its projections) or block (with its MLP)")
    lengths: list[int] = option([512, 1024, 2048, 4096, 8192, 16384, 32768, 65536], "sequence lengths in tokens")
    dim: int = option(256, "width of the layer, in channels")
    heads: int = option(4, "number of heads")
    causal: bool = option(False, "true if each position sees only itself and earlier ones; then there is a recurrent state")
    mlp_ratio: float = option(2.0, "width of a block's MLP divided by dim")
    seconds: float | None = option(60.0, "time limit of the whole count, in seconds; what would exceed it is left out")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text("level", self.level, LEVELS)
        self.groups()

    def groups(self) -> list[list[Cell]]:
        cells = [
            replace(cell, kind="counted", subject=cell.subject and replace(cell.subject, causal=self.causal))
            for cell in (BASELINE, *self.layers)
        ]
        return [[replace(cell, length=n) for cell in cells] for n in sorted(self.lengths)]

    def once(self, cell: Cell) -> Sequence[Probe]:
        return (Probe("flops", self._count),)

    def warm_up(self, cell: Cell) -> None:
        if cell.length == min(self.lengths):
            with suppress(WorkerError):  # the probe raises it again
                self._counted(cell)

    def _count(self, ask: Ask, found: Figures) -> Answer:
        """Count each quantity to show, and add PyTorch's count if it differs from the formula."""
        counted = self._counted(found.cell)
        differing = {f"{name}_by_pytorch": pair[1] for name, pair in counted.disagreements().items()}
        return {**{name: counted.shown(name) for name in QUANTITIES}, **differing}

    def _counted(self, cell: Cell) -> Counted:
        assert cell.subject is not None
        try:
            return count_level(self.level, cell.subject, Sizes(self.dim, self.heads, mlp_ratio=self.mlp_ratio), cell.length)
        except (UnsupportedError, ValueError) as error:
            raise WorkerError("refused", str(error)) from error

    @staticmethod
    def report(found: Measurement, format: str = "github") -> str:
        grid, points = found.grid, [f for f in found.cells.values() if f.cell.role != "baseline"]
        softmax = {f.cell.length: f for f in found.cells.values() if f.cell.role == "baseline"}
        shown = [name for name in TITLES if name != "state_bytes" or grid["causal"]]
        parts = [f"**{TITLES[name]}**\n\n{_table(points, softmax, name, format)}" for name in shown]
        mlp = f", MLP of {grid['mlp_ratio']:g} times the width" if grid["level"] == "block" else ""
        where = f"width {grid['dim']}, {grid['heads']} heads{mlp}{', causal' if grid['causal'] else ''}"
        notes = [f"{KINDS[grid['level']]}: {where}. {explained('counted')}"]
        notes += [] if grid["causal"] else ["Bidirectional attention has no recurrent state; causal=true shows it."]
        return joined(found, *parts, "\n".join(f"- {line}" for line in [*notes, *_remarks(points, grid)]))
