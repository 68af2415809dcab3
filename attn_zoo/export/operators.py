"""ONNX functions for operators that torch's exporter lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """ONNX functions by ATen operator. A stable sort is ``TopK`` over all elements, which preserves the order of equal numbers."""
    from onnxscript import opset20

    op: Any = opset20  # untyped: its annotations are for eager values, here it builds a graph

    def stable_sort(self: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
        count = op.Gather(op.Shape(self), op.Constant(value_ints=[dim]))
        values, indices = op.TopK(self, count, axis=dim, largest=int(descending), sorted=1)
        return values, indices

    return {torch.ops.aten.sort.stable: stable_sort}
