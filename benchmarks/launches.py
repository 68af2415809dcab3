"""Number of GPU kernels that each mechanism's eager implementation launches at three lengths.

No GPU is needed, because the operators that PyTorch dispatches are counted on tensors with shapes only.

``python benchmarks/launches.py output=results/launches.json``
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attn_zoo.bench.experiment import Ask, Experiment, Values
from attn_zoo.bench.measurement import Cell, Measurement
from attn_zoo.bench.tables import explained, failures, joined
from attn_zoo.cli.measure import run_experiment
from attn_zoo.contract import auxiliary_loss
from attn_zoo.count.costs import with_gradients
from attn_zoo.count.subjects import Subject, build_module, random_inputs
from attn_zoo.registry import attentions, card
from attn_zoo.rows import option
from attn_zoo.terminal import table

SHAPES = ((1_024, 32), (4_096, 8), (16_384, 2))
"""Pairs of length and batch size."""

DIM, HEADS = 512, 8

FREE = {"aten::_unsafe_view", "aten::detach", "aten::_reshape_alias", "aten::alias", "aten::lift_fresh"}
"""Operators that launch no kernel and are not marked as views."""


class OperatorCount(TorchDispatchMode):
    """Counter of the operators that PyTorch dispatches in a ``with`` block. Views and the operators in ``FREE`` do not count."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count += not (func.is_view or func._schema.name in FREE)
        return result


@dataclass
class Launches(Experiment):
    """Number of kernels that each mechanism's eager implementation launches on a GPU at three lengths, counted without a GPU."""

    attention: list[str] = option([], "names of mechanisms; all if empty")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.attention = self.attention or list(attentions())
        self.groups()

    def groups(self) -> list[list[Cell]]:
        kinds = {name: ["", "yes"] if card(name).can.causal else [""] for name in self.attention}
        return [[Cell(name, kind, n, batch) for kind in kinds[name] for n, batch in SHAPES] for name in self.attention]

    def once(self, cell: Cell) -> Mapping[str, Callable[[Ask, Cell], Values]]:
        return {"forward_launches": _count}

    @staticmethod
    def report(found: Measurement, format: str = "github") -> str:
        shapes = sorted({(cell.length, cell.batch) for cell in found.cells})
        counts = {(cell.label, cell.kind, cell.length): _both(cell) for cell in found.cells}
        rows = [
            [label, kind, *(counts.get((label, kind, length), "-") for length, _ in shapes)]
            for label, kind in dict.fromkeys((cell.label, cell.kind) for cell in found.cells)
        ]
        head = ["attention", "causal", *(f"n = {length:,}, batch {batch}" for length, batch in shapes)]
        kinds = {"": "bidirectional", "yes": "causal"}
        what = f"Counts are forward / backward, of `eager` in training: {HEADS} heads of width 64, default options, no padding"
        last = f"- {what}. {explained('launches')}"
        return joined(found, table(head, rows, format, left=range(len(head))), failures(found.cells, kinds), last)


def _both(cell: Cell) -> str:
    forward, backward = (cell.one(f"{name}_launches") for name in ("forward", "backward"))
    return "-" if forward is None else f"{forward} / {backward}"


def _count(ask: Ask, cell: Cell) -> Values:
    """Count operators of ``eager`` in training without padding or dropout; one operator may launch several kernels."""
    subject = Subject(cell.label, {}, "eager", causal=cell.kind == "yes")
    with torch.device("meta"):
        mechanism = build_module("mechanism", subject, DIM, HEADS, cell.length)
        inputs = with_gradients(random_inputs("mechanism", subject, DIM, HEADS, cell.batch, cell.length, torch.float32))
        with OperatorCount() as forward:
            out = mechanism(*inputs)
        loss = auxiliary_loss(mechanism)
        with OperatorCount() as backward:
            if isinstance(loss, torch.Tensor):
                torch.autograd.backward([out, loss], [torch.empty_like(out), None])
            elif out.requires_grad:
                out.backward(torch.empty_like(out))
    return {"forward_launches": forward.count, "backward_launches": backward.count}


if __name__ == "__main__":
    raise SystemExit(run_experiment("launches", Launches, sys.argv[1:]))
