"""Experiment ``growth``: how the time and memory of a layer grow with the sequence length."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from attn_zoo.bench.measurement import Cell, Figures, Measurement
from attn_zoo.bench.probes import MEMORY, Probe, largest_batch
from attn_zoo.bench.tables import failures, joined, notes, reason, seconds_or_reason
from attn_zoo.bench.timed import KINDS, AttentionRows, Timed
from attn_zoo.bench.timing import fit_exponent
from attn_zoo.rows import option
from attn_zoo.terminal import table

PROBE_TOKENS = 8192
"""On a CPU, the largest batch is extrapolated from the memory of two batches. The smaller one has about this number of tokens, but
at least one sequence."""


@dataclass
class Growth(Timed, AttentionRows):
    """Time and memory of layers at several lengths, and the exponent with which the time grows with the length."""

    lengths: list[int] = option([2048, 4096, 8192, 16384], "sequence lengths in tokens")
    sequences: int = option(1, "number of sequences in a step")
    memory_gib: float | None = option(None, "also find the largest batch that fits into this memory, in GiB")
    device: str = option("cpu", "auto, cpu or cuda; auto is cuda if there is a GPU")
    order: str = option("in turn", "order within a round: shuffled, 'in turn' or 'there and back'")
    repeat_seconds: float = option(0.0, "seconds for which a step is repeated in one timing")

    def groups(self) -> list[list[Cell]]:
        """Return all cases to measure, as a single group. Every round measures each case once. The exponent is fitted to the times
        at all lengths, so a round must contain all lengths."""
        cells = product(self.lengths, self.layers, KINDS)
        return [[replace(layer, length=n, kind=kind, batch=self.sequences) for n, layer, kind in cells]]

    def once(self, cell: Cell) -> Sequence[Probe]:
        if self.memory_gib is None:
            return (MEMORY,)
        budget, cuda = int(self.memory_gib * 2**30), self.device == "cuda"
        return MEMORY, largest_batch(budget, cuda=cuda, small=lambda n: max(1, PROBE_TOKENS // n), least=self.least_bytes)

    def process(self, cell: Cell) -> str:
        return cell.label

    @staticmethod
    def report(found: Measurement, format: str = "github") -> str:
        grid, lengths = found.grid, sorted({cell.length for cell in found.cells})
        memory, batch = grid.get("memory_gib"), grid.get("sequences", 1)  # files of earlier versions have neither
        head = ["attention", "direction", *(f"{n} (ms)" for n in lengths), "exponent", f"peak at {lengths[-1]} (MiB)"]
        head += [f"largest batch at {lengths[-1]}"] if memory else []
        rows = []
        for label, group in dict.fromkeys((cell.label, cell.group) for cell in found.cells):
            name = f"{label}, heads={group}" if group else label  # several numbers of heads, in files of earlier versions
            for kind, words in KINDS.items():
                own = [f for cell, f in found.cells.items() if (cell.label, cell.group, cell.kind) == (label, group, kind)]
                own.sort(key=lambda f: f.cell.length)
                rows.append([name, words, *_row(own), *([_largest(own[-1])] if memory else [])])
        taken = {cell.subject.implementation for cell in found.cells if cell.subject and ":" not in cell.label}
        what = (
            f"One layer with its projections: width {grid['dim']}, {grid['heads']} heads, "
            f"{'one sequence' if batch == 1 else f'{batch} sequences'}, {grid['precision']}, implementation "
            f"{' or '.join(sorted(taken))}{f'; the largest batch fits into {memory:g} GiB' if memory else ''}"
        )
        failed = failures(found.cells.values(), KINDS)
        return joined(found, table(head, rows, format, left=(0, 1)), notes(found, what, "growth", before=failed))


def _row(own: Sequence[Figures]) -> list[str]:
    times = [f.all("seconds") for f in own]
    peak = own[-1].one("peak_bytes")
    middles = [statistics.median(taken) for taken in times if taken]
    return [
        *(seconds_or_reason(f, 1e3) for f in own),
        f"{fit_exponent([f.cell.length for f in own], middles):.2f}" if len(own) > 2 and all(times) else "-",
        "-" if peak is None else f"{peak / 2**20:.0f}",
    ]


def _largest(found: Figures) -> str:
    most = found.one("largest_batch")
    return reason(found, "largest_batch") if most is None else f"{most:,.0f}"
