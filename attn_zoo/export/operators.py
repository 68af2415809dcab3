"""ONNX functions for operators that torch's exporter does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """By ATen operator. ``TopK`` of all keeps equal numbers in their order, and so sorts stably; sort's own form is not known."""
    from onnxscript import opset20

    op: Any = opset20  # typed for eager values, and here it builds a graph

    def stable_sort(self: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
        count = op.Gather(op.Shape(self), op.Constant(value_ints=[dim]))
        values, indices = op.TopK(self, count, axis=dim, largest=int(descending), sorted=1)
        return values, indices

    return {torch.ops.aten.sort.stable: stable_sort}
