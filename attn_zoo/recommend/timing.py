"""Timing of candidates on this machine, as an experiment of the engine of ``attn-zoo measure``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.probes import Probe
from attn_zoo.bench.session import Session
from attn_zoo.bench.timed import AttentionRows, Timed
from attn_zoo.count.rigs import Rig
from attn_zoo.recommend.candidates import Candidate, build
from attn_zoo.recommend.requirements import Requirements
from attn_zoo.records import describe_environment
from attn_zoo.rows import RowName, option


@dataclass
class LayerTimes(Timed, AttentionRows):
    """Wall-clock time of the required layers with their projections, interleaved, one process for each layer."""

    required: Requirements = field(default_factory=lambda: Requirements(1))
    repeat_seconds: float = option(0.05, "a timing repeats its step until this many seconds have passed")

    def groups(self) -> list[list[Cell]]:
        kind, batch = self.required.direction, self.required.batch
        return [[replace(layer, length=n, kind=kind, batch=batch) for layer in self.layers] for n in self.lengths]

    def once(self, cell: Cell) -> Sequence[Probe]:
        return ()

    def rig(self, cell: Cell) -> Rig:
        assert cell.subject is not None
        row = RowName(cell.subject.attention, cell.subject.options, cell.subject.implementation)
        return replace(super().rig(cell), build=partial(build, replace(self.required, cross=False), row))


def times(required: Requirements, layers: Sequence[Candidate], tell: Callable[[str], None]) -> dict[str, float]:
    """Return the median seconds of a step by label; candidates whose timing failed are left out.

    Args:
        tell: callback that receives lines of progress.
    """
    grid = LayerTimes(
        attentions=[str(RowName(each.attention, each.options, each.implementation)) for each in layers],
        lengths=[required.length],
        dim=required.width,
        heads=required.heads,
        device=required.device,
        required=required,
    )
    found = Measurement("recommend", {}, grid.protocol, describe_environment(required.device))
    Session(grid, found, tell=tell).run()
    labels = {cell.label: each.label for cell, each in zip(grid.layers, layers, strict=True)}
    return {labels[cell.label]: statistics.median(taken) for cell, each in found.cells.items() if (taken := each.all("seconds"))}
