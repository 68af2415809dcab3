"""Kernels that plain PyTorch forms launch on a GPU at three lengths, counted on shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attn_zoo.contract import Geometry
from attn_zoo.cost.counted.launches import SHAPES, launches
from attn_zoo.cost.grid import Grid, option
from attn_zoo.cost.measurement import Cell, Figures, Measurement
from attn_zoo.cost.probes import Answer, Ask, Probe
from attn_zoo.cost.tables import joined, markdown
from attn_zoo.registry import attentions, card

CAUSAL = {"": False, "yes": True}
"""By the words that a cell's kind has for it."""


class Counter:
    """Counts the launches of a mechanism in 8 heads of 64."""

    def count(self, cell: Cell) -> Answer:
        """Of the forward and of the backward pass."""
        forward, backward = launches(cell.label, Geometry(8, 64, cell.length, cell.length, CAUSAL[cell.kind]), cell.batch)
        return {"forward_launches": forward, "backward_launches": backward}


@dataclass
class Launches(Grid):
    """Kernels that plain PyTorch forms (eager) launch on a GPU at three lengths, counted on shapes."""

    attentions: list[str] = option([], "NAME of each; all where there is none")

    in_process: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.attentions = self.attentions or list(attentions())
        self.groups()

    def groups(self) -> list[list[Cell]]:
        kinds = {name: ["", "yes"] if card(name).can.causal else [""] for name in self.attentions}
        return [[Cell(name, kind, n, batch) for kind in kinds[name] for n, batch in SHAPES] for name in self.attentions]

    def once(self, cell: Cell) -> Sequence[Probe]:
        return (Probe("forward_launches", _count),)

    def maker(self, cell: Cell) -> tuple[Any, ...]:
        return (Counter,)

    @staticmethod
    def report(found: Measurement) -> str:
        shapes = sorted({(cell.length, cell.batch) for cell in found.cells})
        by = {(cell.label, cell.kind, cell.length): figures for cell, figures in found.cells.items()}
        rows = [
            [label, kind, *(_both(by[label, kind, length]) for length, _ in shapes)]
            for label, kind in dict.fromkeys((cell.label, cell.kind) for cell in found.cells)
        ]
        head = ["attention", "causal", *(f"n = {length:,}, batch {batch}" for length, batch in shapes)]
        told = (
            "Operators other than views, forward / backward, of `eager` in training at 8 heads of 64, default options, no padding."
        )
        return joined(found, markdown(head, rows, words=range(len(head))), told)


def _count(ask: Ask, found: Figures) -> Answer:
    answer: Answer = ask("count", found.cell)
    return answer


def _both(found: Figures) -> str:
    return f"{found.one('forward_launches')} / {found.one('backward_launches')}"
