"""Table 3 of the Linformer paper (Wang et al. 2020, arXiv:2006.04768), measured on this machine and shown beside the printed one.

``python benchmarks/linformer_table3.py``; ``--help`` lists the keys.

The paper measures inference of whole models on one 16 GB V100, on random data, with layerwise sharing. The left half of its table
is the time saved, if each model runs with the largest batch that fits. The right half is the memory saved, which is the quotient of
these batches. This program measures one attention layer with its projections, so that no feed-forward layer dilutes the quotients.
It compares with softmax attention, both materialised and fused.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from attn_zoo.bench.compare import quartiles, quotients
from attn_zoo.bench.experiment import KINDS, Ask, LayerTiming, Values, largest_batch, softmax_cells
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.tables import failures, joined, notes, reason, spread
from attn_zoo.bench.workers import WorkerError
from attn_zoo.cli.measure import run_experiment
from attn_zoo.count.subjects import Subject
from attn_zoo.published import figures
from attn_zoo.rows import RowName, option, typed
from attn_zoo.terminal import table


def _printed(metric: str) -> dict[tuple[int, int], str]:
    found = figures(attention="linformer", metric=metric)
    return {(f.protocol.length, f.options["projected_length"]): f.printed for f in found if f.protocol.length is not None}


TIME_SAVED, MEMORY_SAVED = _printed("time saved"), _printed("memory saved")
"""Time and memory saved by (length, projected length), in the paper's digits."""

LENGTHS, PROJECTED_LENGTHS = (tuple(sorted(set(values))) for values in zip(*TIME_SAVED, strict=True))

PAPER_WIDTH, PAPER_HEADS = 768, 12

TABLES: Mapping[str, tuple[str, str, str]] = {
    "forward time": ("seconds", "forward", "Time saved, forward (inference)"),
    "training time": ("seconds", "training", "Time saved, forward + backward"),
    "backward time": ("backward_seconds", "training", "Time saved, backward alone"),
    "forward memory": ("largest_batch", "forward", "Memory saved, forward (inference): quotient of largest batches"),
    "training memory": ("largest_batch", "training", "Memory saved, forward + backward: quotient of largest batches"),
}
"""Quantity, kind of step and title of each table."""


def table3_report(found: Measurement, format: str = "github", *, tables: Sequence[str] = tuple(TABLES)) -> str:
    """Return the report on Table 3 as text.

    Args:
        format: ``github``, or ``terminal`` for tables that fit a terminal.
        tables: which tables to print, keys of ``TABLES``.
    """
    printed = [_table(found, format, *TABLES[name]) for name in tables]
    return joined(found, *printed, _notes(found))


def _table(found: Measurement, format: str, quantity: str, kind: str, title: str) -> str:
    projected, rows = found.settings["projected_lengths"], []
    for n in sorted({cell.length for cell in found.cells}):
        layers = _layers(found, quantity, kind, n)
        linformers = [each for each in layers if each.role == "linformer"]
        by_k = {each.subject.options["projected_length"]: each for each in linformers if each.subject}
        for role in ("materialised", "sdpa"):
            base = min((each for each in layers if each.role == role), key=lambda each: _cost(each, quantity))
            compared = [_quotient(base, by_k[k], quantity, (n, k)) if k in by_k else "-" for k in projected]
            rows.append([str(n), _name(base), _absolute(base, quantity), *compared])
    unit = "largest batch" if quantity == "largest_batch" else "ms per sequence"
    return f"**{title}**\n\n" + table(["n", "against", unit, *(f"k={k}" for k in projected)], rows, format, left=(1,))


def _layers(found: Measurement, quantity: str, kind: str, length: int) -> list[Cell]:
    """The cell of each layer at a length, at the batch where the quantity was measured, or of a failure where there is none."""
    here = [cell for cell in found.cells if (cell.kind, cell.length) == (kind, length)]
    here.sort(key=lambda cell: quantity in cell.values)
    return list({cell.label: cell for cell in here}.values())


def _costs(cell: Cell, quantity: str) -> list[float]:
    """Costs by round: seconds per sequence, or the inverse of the largest batch, infinite where not one sequence fits."""
    if quantity == "largest_batch":
        return [1 / most if most else math.inf for most in cell.all(quantity)]
    return [seconds / cell.batch for seconds in cell.all(quantity)]


def _cost(cell: Cell, quantity: str) -> float:
    """Cost by which the best back end is chosen; infinite without a figure."""
    return quartiles(costs)[1] if (costs := _costs(cell, quantity)) else math.inf


def _absolute(cell: Cell, quantity: str) -> str:
    if quantity not in cell.values:
        return _failure(cell, quantity)
    cost = _cost(cell, quantity)
    if quantity == "largest_batch":
        return f"{1 / cost:.0f}" if cost < math.inf else "OOM"
    return f"{1e3 * cost:.0f}" if cost >= 0.1 else f"{1e3 * cost:.3g}"


def _quotient(base: Cell, ours: Cell, quantity: str, at: tuple[int, int]) -> str:
    """Quotient of baseline over Linformer, with the paper's figure for the forward pass."""
    printed = TIME_SAVED if quantity == "seconds" else MEMORY_SAVED
    paper = f" (paper {printed[at]})" if ours.kind == "forward" and at in printed else ""
    for each, words in ((ours, ""), (base, "baseline ")):
        if quantity not in each.values:
            return f"{words}{_failure(each, quantity)}{paper}"
    if not ours.one(quantity):
        return f"OOM{paper}"
    if not base.one(quantity):  # less than one sequence of the baseline fits, so the quotient exceeds our batch
        return f"> {ours.one(quantity):.0f}{paper}"
    saved = quotients(_costs(base, quantity), _costs(ours, quantity))
    middle = quartiles(saved)[1]
    digits = 2 if middle < 1 else 1 if middle < 100 else 0
    return (f"{middle:.{digits}f}" if quantity == "largest_batch" else spread(saved, digits)) + paper


def _failure(cell: Cell, quantity: str) -> str:
    word = reason(cell, quantity, "seconds" if quantity == "backward_seconds" else quantity)
    return "not measured" if word == "-" else word


def _name(cell: Cell) -> str:
    subject = cell.subject
    if cell.role == "materialised" or subject is None:
        return "materialised"
    return f"SDPA ({subject.backend})" if subject.backend else "SDPA"


def _notes(found: Measurement) -> str:
    settings = found.settings
    used = sorted({cell.subject.implementation for cell in found.cells if cell.role == "linformer" and cell.subject})
    what = (
        f"One layer with its projections: width {settings['dim']}, {settings['heads']} heads, {settings['precision']}; Linformer "
        f"with {settings['sharing']} sharing ({', '.join(used)}); memory of {settings['memory_gib']:g} GiB"
    )
    return notes(found, what, "linformer_table3", before=failures(found.cells, KINDS))


@dataclass
class LinformerTable3(LayerTiming):
    """Table 3 of the Linformer paper on this machine: time and memory that Linformer saves against materialised and against fused
    softmax.

    On CUDA, the lengths and widths are those of the paper; on a CPU, they are smaller, so that the program takes minutes. Keys
    that are null take the defaults of the device.
    """

    # Null until the device is known.
    lengths: list[int] | None = option(None, "n (cuda: 512 to 65536, cpu: 512 to 8192)")  # type: ignore[assignment]  # None: by level or device
    dim: int | None = option(None, "width of the layer (cuda: 768, cpu: 256)")  # type: ignore[assignment]  # None: by level or device
    heads: int | None = option(None, "heads (cuda: 12, cpu: 4)")  # type: ignore[assignment]  # None: by level or device
    precision: str | None = option(None, "fp32, bf16 or fp16 (cuda: bf16, cpu: fp32)")  # type: ignore[assignment]  # None: by level or device
    projected_lengths: list[int] | None = option(None, "k, compared where below n (cuda: 128 to 2048, cpu: 128 to 512)")
    tokens: int | None = option(None, "tokens of a timed step, a batch of tokens // n (cuda: 65536, cpu: 8192)")
    sharing: str = option("layerwise", "sharing of Linformer's projections")
    implementation: str = option("auto", "of Linformer; auto is triton, sdpa or eager, the first that the device and k allow")
    memory_gib: float = option(16.0, "budget within which the largest batch is sought")
    time_limit: float = option(300.0, "seconds that one request to a cell's process may take")

    device_defaults: ClassVar = {
        "cuda": {"lengths": list(LENGTHS), "projected_lengths": list(PROJECTED_LENGTHS), "precision": "bf16", "tokens": 65536}
        | {"dim": PAPER_WIDTH, "heads": PAPER_HEADS},
        "cpu": {"lengths": list(LENGTHS[:5]), "projected_lengths": list(PROJECTED_LENGTHS[:3]), "precision": "fp32"}
        | {"dim": 256, "heads": 4, "tokens": 8192},
    }
    """The paper's grid and width, and a grid that a CPU finishes in minutes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.lengths and self.projected_lengths
        if not pairs(self.lengths, self.projected_lengths):
            raise ValueError(
                "at least one of projected_lengths= must be less than one of lengths=; got "
                f"projected_lengths={self.projected_lengths} and lengths={self.lengths}"
            )
        for cell in (cell for cells in self.groups() for cell in cells):
            if why := super().refusal(cell):
                raise ValueError(why.removeprefix("refused: "))

    def groups(self) -> list[list[Cell]]:
        return [[replace(each, kind=kind, length=n) for each in self.layers(n) for kind in KINDS] for n in self.lengths or ()]

    def layers(self, length: int) -> list[Cell]:
        """Return the layers that are measured at one length: the softmax layers, then Linformer's."""
        found = softmax_cells(self.device)
        for n, k in pairs([length], self.projected_lengths or []):
            row = typed(RowName("linformer", {"projected_length": k, "sharing": self.sharing}, self.implementation))
            if row.implementation == "auto":
                row = replace(row, implementation=self.chosen(row.attention, row.options, n))
            subject = Subject(row.attention, row.options, row.implementation)
            found.append(Cell(str(row), "", 0, role="linformer", subject=subject))
        return found

    def batch(self, length: int) -> int:
        """Return the largest number of sequences in a timed step. If they do not fit into memory, the step has fewer."""
        assert self.tokens is not None
        return max(1, self.tokens // length)

    def once(self, cell: Cell) -> Mapping[str, Callable[[Ask, Cell], Values]]:
        assert self.tokens is not None
        most = partial(largest_batch, int(self.memory_gib * 2**30), self.device, self.tokens)
        return {"largest_batch": most, "fitting_batch": self._fitting_batch} if cell.batch == 1 else {}

    def _fitting_batch(self, ask: Ask, cell: Cell) -> Values:
        """Batch size of the timed step, halved until it fits into memory."""
        batch = self.batch(cell.length)
        while True:
            try:
                ask("parts", cell.kind, batch, cell.length)
                return {"fitting_batch": batch}
            except WorkerError as error:
                if error.kind != "OOM" or batch == 1:
                    raise
                batch //= 2

    def timed(self, cells: Sequence[Cell]) -> list[Cell]:
        known = [(cell, cell.one("fitting_batch")) for cell in cells]
        return [replace(cell, batch=int(batch)) for cell, batch in known if batch is not None]

    def refusal(self, cell: Cell) -> str | None:
        """Return None, because this experiment leaves out no timed case. Layers are checked before it starts, and it searches for
        a batch that fits into memory."""
        return None

    report = staticmethod(table3_report)


def pairs(lengths: Sequence[int], projected_lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return all pairs of a length and a smaller projected length, as in the paper's table."""
    return [(n, k) for n in lengths for k in projected_lengths if k < n]


if __name__ == "__main__":
    raise SystemExit(run_experiment("linformer_table3", LinformerTable3, sys.argv[1:]))
