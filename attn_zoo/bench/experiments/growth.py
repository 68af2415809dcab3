"""Experiment ``growth``: how the time and memory of a layer grow with the sequence length."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from attn_zoo.bench.compare import fit_exponent
from attn_zoo.bench.experiment import KINDS, ROWS, Ask, LayerTiming, Values, attention_cells, largest_batch
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.tables import failures, joined, notes, reason, seconds_or_reason
from attn_zoo.rows import option
from attn_zoo.terminal import table

PROBE_TOKENS = 8192
"""On a CPU, the largest batch is extrapolated from the memory of two batches. The smaller one has about this number of tokens, but
at least one sequence."""


@dataclass
class GrowthExperiment(LayerTiming):
    """Time and memory of layers at several lengths, and the exponent with which the time grows with the length."""

    attention: list[str] = option(["softmax", "linformer", "performer", "longformer", "reformer"], ROWS)
    lengths: list[int] = option([2048, 4096, 8192, 16384], "sequence lengths in tokens")
    sequences: int = option(1, "number of sequences in a step")
    memory_gib: float | None = option(None, "also find the largest batch that fits into this memory, in GiB")
    device: str = option("cpu", "auto, cpu or cuda; auto is cuda if there is a GPU")
    repeat_seconds: float = option(0.0, "seconds for which a step is repeated in one timing")

    def groups(self) -> list[list[Cell]]:
        """Return all cells as a single group: the exponent is fitted to the times at all lengths, so a round must contain all
        lengths."""
        cells = product(self.lengths, attention_cells(self.attention), KINDS)
        return [[replace(layer, length=n, kind=kind, batch=self.sequences) for n, layer, kind in cells]]

    def once(self, cell: Cell) -> Mapping[str, Callable[[Ask, Cell], Values]]:
        if self.memory_gib is None:
            return super().once(cell)
        most = partial(largest_batch, int(self.memory_gib * 2**30), self.device, PROBE_TOKENS)
        return {**super().once(cell), "largest_batch": most}

    @staticmethod
    def report(found: Measurement, format: str = "github") -> str:
        settings, lengths = found.settings, sorted({cell.length for cell in found.cells})
        memory, batch = settings.get("memory_gib"), settings.get("sequences", 1)  # files of earlier versions have neither
        head = ["attention", "direction", *(f"{n} (ms)" for n in lengths), "exponent", f"peak at {lengths[-1]} (MiB)"]
        head += [f"largest batch at {lengths[-1]}"] if memory else []
        rows = []
        for label, group in dict.fromkeys((cell.label, cell.group) for cell in found.cells):
            name = f"{label}, heads={group}" if group else label  # several numbers of heads, in files of earlier versions
            for kind, words in KINDS.items():
                own = [cell for cell in found.cells if (cell.label, cell.group, cell.kind) == (label, group, kind)]
                own.sort(key=lambda cell: cell.length)
                rows.append([name, words, *_row(own), *([_largest(own[-1])] if memory else [])])
        taken = {cell.subject.implementation for cell in found.cells if cell.subject and ":" not in cell.label}
        what = (
            f"One layer with its projections: width {settings['dim']}, {settings['heads']} heads, "
            f"{'one sequence' if batch == 1 else f'{batch} sequences'}, {settings['precision']}, implementation "
            f"{' or '.join(sorted(taken))}{f'; the largest batch fits into {memory:g} GiB' if memory else ''}"
        )
        failed = failures(found.cells, KINDS)
        return joined(found, table(head, rows, format, left=(0, 1)), notes(found, what, "growth", before=failed))


def _row(own: Sequence[Cell]) -> list[str]:
    times = [cell.all("seconds") for cell in own]
    peak = own[-1].one("peak_bytes")
    middles = [statistics.median(taken) for taken in times if taken]
    return [
        *(seconds_or_reason(cell, 1e3) for cell in own),
        f"{fit_exponent([cell.length for cell in own], middles):.2f}" if len(own) > 2 and all(times) else "-",
        "-" if peak is None else f"{peak / 2**20:.0f}",
    ]


def _largest(cell: Cell) -> str:
    most = cell.one("largest_batch")
    return reason(cell, "largest_batch") if most is None else f"{most:,.0f}"
