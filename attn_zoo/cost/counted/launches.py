"""Kernels that a mechanism would launch on a GPU, counted as operators dispatched for tensors without numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attn_zoo.contract import Geometry
from attn_zoo.cost.counted.levels import inputs_and_call
from attn_zoo.registry import build_attention


class _Launches(TorchDispatchMode):
    """Counts operators that are no views."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count += not (func.is_view or func._schema.name in _FREE)
        return result


_FREE = {"aten::_unsafe_view", "aten::detach", "aten::_reshape_alias", "aten::alias", "aten::lift_fresh"}
"""Operators that launch nothing and are not marked as views."""


def launches(attention: str, geometry: Geometry, batch: int, **options: Any) -> tuple[int, int]:
    """Operators of ``eager`` that are no views, of the forward and of the backward pass.

    One layer in training without padding or dropout. An operator may launch several kernels, and views launch none.

    Raises:
        UnknownNameError: no such attention or option.
        UnsupportedError: the mechanism does not claim the geometry.
    """
    with torch.device("meta"):
        mechanism = build_attention(attention, geometry, implementation="eager", **options)
        _, call = inputs_and_call(mechanism, batch)
        with _Launches() as forward:  # type: ignore[no-untyped-call]  # torch leaves the base class untyped
            out = call()
        with _Launches() as backward:  # type: ignore[no-untyped-call]
            if out.requires_grad:
                out.backward(torch.empty_like(out))
    return forward.count, backward.count


SHAPES = ((1_024, 32), (4_096, 8), (16_384, 2))
"""Lengths and batches at which launches are told; a width of 512 in 8 heads."""
