"""Checks of Linformer's Triton kernels against float64, at the sizes that are timed.

Each result is computed twice, in memory that held NaN before. Its error is the norm of the difference from float64, divided by the
norm of the float64 result, so NaN never passes. The error may be at most ``TOLERANCE``. In 16 bits there is a second bound,
twice the error of PyTorch's own operators in the same type. A kernel must meet the smaller bound. A layer must meet the larger one,
because its rounding errors add up. ``tests/kernels`` checks odd shapes, strides, padding and dropout on a machine with a GPU.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_zoo.bench.bench import PRECISIONS
from attn_zoo.kernels.linformer import linformer_attention, project_sequence
from attn_zoo.layer import MultiHeadAttention

TOLERANCE = {"fp32": 5e-6, "fp16": 1e-3, "bf16": 8e-3}
"""Largest relative error by type; on a GPU float32 is multiplied as three tf32 products."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Computation that is checked or timed, with its sizes.

    Its ``part`` is ``core`` (attention over projected keys), ``projection`` (E X, the product of a matrix E with the tokens X) or
    ``layer``.
    """

    part: str
    precision: str
    batch: int
    length: int
    rows: int
    """Projected keys, or rows of the matrix of a projection; 0 in a layer of softmax attention."""
    heads: int
    dim: int

    def __str__(self) -> str:
        return f"{self.part} {self.precision} {self.batch}×{self.length}×{self.dim} r={self.rows}"


Function = Callable[..., Tensor]


def build(p: Problem, by: str, device: torch.device) -> tuple[Function, dict[str, Tensor]]:
    """Return a function that solves the problem, and random inputs for it by name of argument.

    Queries, keys and values are views of tensors of shape (batch, length, heads · head_dim), as in a layer. For a layer, the
    function is a module.

    Args:
        p: the problem.
        by: implementation: ``triton``, or PyTorch's own.
        device: device of the inputs.
    """
    dtype = PRECISIONS[p.precision]
    if p.part == "core":
        sizes = {"query": p.length, "key": p.rows, "value": p.rows}
        inputs = {name: torch.randn(p.batch, n, p.heads, p.dim // p.heads, device=device) for name, n in sizes.items()}
        kernel: Function = linformer_attention if by == "triton" else F.scaled_dot_product_attention
        return kernel, {name: x.to(dtype).transpose(1, 2) for name, x in inputs.items()}
    tokens = torch.randn(p.batch, p.length, p.dim, device=device).to(dtype)
    if p.part == "projection":
        matrix = (torch.randn(p.rows, p.length, device=device) * p.length**-0.5).to(dtype)
        return project_sequence if by == "triton" else torch.matmul, {"projection": matrix, "tokens": tokens}
    options = {"projected_length": p.rows, "implementation": by} if p.rows else {"implementation": "sdpa"}
    layer = MultiHeadAttention(p.dim, p.heads, "linformer" if p.rows else "softmax", length=p.length, **options)
    return layer.to(device, dtype), {"tokens": tokens}


def check(p: Problem, device: torch.device) -> dict[str, Any]:
    """Return the relative error and its bound, for the output and each gradient of a problem. An error that is not a number is
    None.

    The entry ``same`` is True if two runs agree in every bit.
    """
    torch.manual_seed(p.length + p.rows)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic")
        torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory with NaN
        try:
            ours, inputs = build(p, "triton", device)
            reference = build(p, "eager", device)[0]
            if isinstance(ours, nn.Module) and isinstance(reference, nn.Module):
                reference.load_state_dict(ours.state_dict())
            grad = torch.randn_like(ours(*inputs.values()).detach())
            first, second = (_differentiate(ours, inputs, grad) for _ in range(2))
            own = _differentiate(reference, inputs, grad)
            wide = reference.double() if isinstance(reference, nn.Module) else reference
            exact = _differentiate(wide, {name: x.double() for name, x in inputs.items()}, grad.double())
        finally:
            torch.use_deterministic_algorithms(False)
    same = all(torch.equal(first[name].nan_to_num(7.0), second[name].nan_to_num(7.0)) for name in first)
    pairs = {name: (_error(first[name], exact[name]), _bound(p, _error(own[name], exact[name]))) for name in first}
    results = {name: [error if math.isfinite(error) else None, bound] for name, (error, bound) in pairs.items()}
    return {"results": results, "same": same, "right": same and all(error <= bound for error, bound in pairs.values())}


def _bound(p: Problem, own: float) -> float:
    """Largest error allowed where PyTorch's own is ``own``."""
    tolerance = TOLERANCE[p.precision]
    if p.part == "layer":
        return max(tolerance, 2 * own)
    return tolerance if p.precision == "fp32" else min(tolerance, max(2 * own, tolerance / 8))  # own may be 0


def _differentiate(function: Function, inputs: dict[str, Tensor], grad: Tensor) -> dict[str, Tensor]:
    """Output, and gradients of inputs and parameters."""
    leaves = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    out = function(*leaves.values())
    leaves |= dict(function.named_parameters()) if isinstance(function, nn.Module) else {}
    return {"out": out.detach(), **dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), grad), strict=True))}


def _error(found: Tensor, expected: Tensor) -> float:
    expected = expected.double()
    return (found.double() - expected).norm().item() / (expected.norm().item() or 1.0)
