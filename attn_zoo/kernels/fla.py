"""flash-linear-attention's Triton kernels for the ``fla`` implementations."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.kernels.cpu.favor import HIDDEN
from attn_zoo.shapes import Keys, KeyValid, Queries

DTYPE = torch.bfloat16
"""Type in which the kernels multiply, ``contract.FLA_DTYPE``."""
LOWEST_GATE = -87.0
"""Log gate: exp(-87) is about the smallest float32, and beside lower ones their sums would lose the others."""

STEP = 16
"""Widths are filled up to multiples of it, as those of matrix units are; the kernels refuse some of the others."""


def answers(
    operator: str,
    query: Float[Tensor, "batch heads n m"],
    key: Float[Tensor, "batch heads n m"],
    value: Float[Tensor, "batch heads n d"],
    *gates: Float[Tensor, "batch heads n ..."],
    **settings: Any,
) -> Float[Tensor, "batch heads n d"]:
    """Answers of a kernel to a whole sequence, in the type of ``value``.

    Args:
        operator: the package's name of it.
        *gates: log gates or writing strengths; they stay in their type.
        **settings: of the kernel.
    """
    rows = [_filled(x).to(DTYPE) for x in (query, key, value)]
    weights = [_filled(gate) if gate.dim() == 4 else gate for gate in gates]
    out, _ = kernel(operator)(*(x.transpose(1, 2) for x in (*rows, *weights)), **settings)
    return out.transpose(1, 2)[..., : value.shape[-1]].to(value.dtype)


def sums_of_past(
    log_query: Float[Tensor, "batch heads n m"], log_key: Float[Tensor, "batch heads n m"], value: Keys, valid: KeyValid
) -> Queries:
    """Σⱼ φ(qᵢ)·φ(kⱼ) vⱼ over valid j ≤ i, times a number for each i, from log φ.

    Sums are relative to the highest feature of the keys so far, as gated linear attention: where that rises, a gate shrinks all.
    """
    phi_query = (log_query - log_query.detach().amax(dim=-1, keepdim=True)).exp()
    logs = log_key if valid is None else log_key.masked_fill(~valid[:, None, :, None], HIDDEN)
    highest = logs.detach().amax(dim=-1, keepdim=True).cummax(dim=2).values
    phi_key = (logs - highest).exp()
    phi_key = phi_key if valid is None else phi_key * valid[:, None, :, None]
    gate = F.pad(highest[:, :, :-1] - highest[:, :, 1:], (0, 0, 1, 0)).clamp(min=LOWEST_GATE).expand_as(phi_key)
    return answers("gla", phi_query, phi_key, value, gate, scale=1.0)


def kernel(operator: str) -> Callable[..., tuple[Tensor, Any]]:
    """Chunked kernel of an operator, for (batch, n, heads, width). Its import takes Triton and seconds, so it waits for a call."""
    found: Callable[..., tuple[Tensor, Any]] = getattr(importlib.import_module(f"fla.ops.{operator}"), f"chunk_{operator}")
    return found


def _filled(x: Float[Tensor, "batch heads n width"]) -> Float[Tensor, "batch heads n filled"]:
    """Zeros up to the next width: features of zero, gates that keep them, values that nobody reads."""
    return F.pad(x, (0, -x.shape[-1] % STEP))


def without_causality(owner: str) -> str:
    """Why averages over all keys are refused."""
    return f"{owner} without causality is two products of matrices, for which fla has no kernel; use implementation=eager"
