"""Time per sequence over the batch size."""

from __future__ import annotations

from dataclasses import dataclass, replace

from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.tables import conditions, failures, figure_or_reason, joined, markdown
from attn_zoo.bench.timed import KINDS, AttentionRows, Timed
from attn_zoo.rows import option


@dataclass
class BatchSize(Timed, AttentionRows):
    """Time of a sequence against the batch size, which shows where a device is full."""

    lengths: list[int] = option([1024], "lengths")
    batches: list[int] = option([1, 2, 4, 8, 16, 32], "batches")

    def groups(self) -> list[list[Cell]]:
        """One group of cells for each length, since all batches of a length are compared."""
        cells = [replace(layer, kind=kind, batch=batch) for layer in self.layers for kind in KINDS for batch in self.batches]
        return [[replace(cell, length=length) for cell in cells] for length in self.lengths]

    @staticmethod
    def report(found: Measurement) -> str:
        batches = sorted({cell.batch for cell in found.cells})
        rows = []
        for label, length, kind in dict.fromkeys((cell.label, cell.length, cell.kind) for cell in found.cells):
            cells = [found.of(Cell(label, kind, length, batch)) for batch in batches]
            times = [figure_or_reason(each, found.protocol, factor=1e3 / each.cell.batch) for each in cells]
            rows.append([label, str(length), KINDS[kind], *times])
        head = ["attention", "n", "direction", *(f"batch {batch}" for batch in batches)]
        said = (
            "Milliseconds a sequence: the time of a step over its batch. One layer with its projections, width "
            f"{found.grid['dim']}, {found.grid['heads']} heads, {found.grid['precision']}; ~ marks what is unstable. "
            f"{conditions(found)}"
        )
        return joined(found, markdown(head, rows, words=(0, 2)), failures(found.cells.values(), KINDS), said)
