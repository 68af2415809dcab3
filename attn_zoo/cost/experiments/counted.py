"""FLOPs, parameters, activations and states over lengths, from formulas and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attn_zoo.contract import UnsupportedError
from attn_zoo.cost.bench import Subject
from attn_zoo.cost.counted.levels import LEVELS, QUANTITIES, count_level
from attn_zoo.cost.counted.report import counted_report
from attn_zoo.cost.grid import Grid, option
from attn_zoo.cost.levels import Sizes
from attn_zoo.cost.measurement import Cell, Figures
from attn_zoo.cost.probes import Answer, Ask, Probe
from attn_zoo.cost.timed import AttentionRows, subjects_of
from attn_zoo.cost.workers import WorkerError

BASELINE = {"softmax, the measure": Subject("softmax", {}, "eager")}


@dataclass
class CountedCost(Grid, AttentionRows):
    """FLOPs, parameters and state bytes by formula, held against PyTorch's counters, and the activation bytes that it counts."""

    level: str = option("mechanism", "mechanism, layer (with its projections) or block (with its MLP)")
    lengths: list[int] = option([512, 1024, 2048, 4096, 8192, 16384, 32768, 65536], "lengths")
    dim: int = option(256, "width")
    heads: int = option(4, "heads")
    causal: bool = option(False, "position i sees positions up to i only; then there is a state")
    mlp_ratio: float = option(2.0, "width of a block's MLP over dim")
    seconds: float | None = option(60.0, "seconds of the whole count; cells that would not end within them are left out")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level not in LEVELS:
            raise ValueError(f"level must be one of {', '.join(LEVELS)}; got {self.level!r}")
        self.groups()

    def groups(self) -> list[list[Cell]]:
        roles = {"baseline": BASELINE, "mechanism": subjects_of(self.attentions)}
        return [
            [
                Cell(label, "counted", n, role=role, subject=replace(subject, causal=self.causal))
                for role, subjects in roles.items()
                for label, subject in subjects.items()
            ]
            for n in sorted(self.lengths)
        ]

    def once(self, cell: Cell) -> Sequence[Probe]:
        return (Probe("flops", self._count),)

    def _count(self, ask: Ask, found: Figures) -> Answer:
        """Count each quantity to show, and add PyTorch's count where it differs from the formula."""
        cell, sizes = found.cell, Sizes(self.dim, self.heads, mlp_ratio=self.mlp_ratio)
        assert cell.subject is not None
        try:
            counted = count_level(self.level, cell.subject, sizes, cell.length)
        except (UnsupportedError, ValueError) as error:
            raise WorkerError("refused", str(error)) from error
        differing = {f"{name}_by_pytorch": pair[1] for name, pair in counted.disagreements().items()}
        return {**{name: counted.shown(name) for name in QUANTITIES}, **differing}

    report = staticmethod(counted_report)
