"""Table 3 of the Linformer paper on this machine: time and memory saved against softmax attention, materialised and fused.

One attention layer with its projections is measured, where the paper measured its whole model: no feed-forward part dilutes the
quotients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from attn_zoo.cost.bench import Subject
from attn_zoo.cost.grid import option
from attn_zoo.cost.linformer_report import LENGTHS, PAPER_HEADS, PAPER_WIDTH, PROJECTED_LENGTHS, table3_report
from attn_zoo.cost.measurement import Cell, Figures, Measurement
from attn_zoo.cost.probes import Answer, Ask, Probe, largest_batch
from attn_zoo.cost.timed import KINDS, Timed, softmax_layers
from attn_zoo.cost.workers import WorkerError
from attn_zoo.rows import RowName, typed


@dataclass
class LinformerTable3(Timed):
    """Table 3 of the Linformer paper on this machine: time and memory saved against softmax, materialised and fused.

    On CUDA the paper's grid; on a CPU one that ends in minutes. Null keys take the defaults of the device.
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
    order: str = option("there and back", "order within the rounds: shuffled, 'in turn' or 'there and back'")
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
            raise ValueError("no projected length is below any of the lengths, so there is nothing to compare")
        with torch.device("meta"):
            for cell in (cell for cells in self.groups() for cell in cells):
                self.rig(cell).build(cell.length)

    def groups(self) -> list[list[Cell]]:
        return [[replace(each, kind=kind, length=n) for each in self.layers(n) for kind in KINDS] for n in self.lengths or ()]

    def layers(self, length: int) -> list[Cell]:
        """Layers at one length, baselines first."""
        found = softmax_layers(self.device)
        for n, k in pairs([length], self.projected_lengths or []):
            row = typed(RowName("linformer", {"projected_length": k, "sharing": self.sharing}, self.implementation))
            if row.implementation == "auto":
                row = replace(row, implementation=self.chosen(row.attention, row.options, n))
            subject = Subject(row.attention, row.options, row.implementation)
            found.append(Cell(str(row), "", 0, role="linformer", subject=subject))
        return found

    def batch(self, length: int) -> int:
        """Number of sequences in a timed step, if they fit into memory."""
        assert self.tokens is not None
        return max(1, self.tokens // length)

    def once(self, cell: Cell) -> Sequence[Probe]:
        budget = int(self.memory_gib * 2**30)
        most = largest_batch(budget, cuda=self.device == "cuda", small=self.batch, least=self.least_bytes)
        return (most, Probe("fitting_batch", self._fitting_batch)) if cell.batch == 1 else ()

    def _fitting_batch(self, ask: Ask, found: Figures) -> Answer:
        """Batch size of the timed step, halved until it fits into memory."""
        cell = replace(found.cell, batch=self.batch(found.cell.length))
        while True:
            try:
                if why := self.excess(cell):
                    raise WorkerError("OOM", why)
                ask("parts", cell.kind, cell.batch, cell.length)
                return {"fitting_batch": cell.batch}
            except WorkerError as error:
                if error.kind != "OOM" or cell.batch == 1:
                    raise
                cell = replace(cell, batch=cell.batch // 2)

    def timed(self, cells: Sequence[Cell], found: Measurement) -> list[Cell]:
        known = [(cell, found.of(cell).one("fitting_batch")) for cell in cells]
        return [replace(cell, batch=int(batch)) for cell, batch in known if batch is not None]

    def refusal(self, cell: Cell) -> str | None:
        """Return None: layers are checked before work starts, and a batch that fits is searched for."""
        return None

    report = staticmethod(table3_report)


def pairs(lengths: Sequence[int], projected_lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Cells of the table: every length with every projected length below it, as in the paper."""
    return [(n, k) for n in lengths for k in projected_lengths if k < n]
