"""flash-linear-attention's Triton kernels for the ``fla`` implementations: the types they take, and a call of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.contract import AttentionCard, Geometry, UnsupportedError, implementations, unavailable
from attn_zoo.precision import autocast_dtype

STEP = 16
"""Widths are filled up to multiples of it, as those of matrix units are; the kernels refuse some of the others."""


def causal_only(owner: str, geometry: Geometry) -> str | None:
    """Why averages over keys by the kernels are refused without causality, or None."""
    if geometry.causal:
        return None
    return f"{owner} without causality is two products of matrices, for which fla has no kernel; use implementation=eager"


def check_dtype(card: AttentionCard, value: Tensor) -> None:
    """Refuse inputs whose products would be taken in a type that the kernels do not take.

    Raises:
        UnsupportedError: naming the mechanism, the types and what to do.
    """
    if reason := unavailable("fla", value.device, autocast_dtype(value)):
        raise UnsupportedError(f"{card.name}: {reason}, or choose another implementation of {', '.join(card.implementations)}")


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
    rows = [_filled(x).to(implementations.FLA_DTYPE) for x in (query, key, value)]
    weights = [_filled(gate) if gate.dim() == 4 else gate for gate in gates]
    out, _ = kernel(operator)(*(x.transpose(1, 2) for x in (*rows, *weights)), **settings)
    return out.transpose(1, 2)[..., : value.shape[-1]].to(value.dtype)


def kernel(operator: str) -> Callable[..., tuple[Tensor, Any]]:
    """Chunked kernel of an operator, for (batch, n, heads, width). Its import takes Triton and seconds, so it waits for a call."""
    found: Callable[..., tuple[Tensor, Any]] = getattr(importlib.import_module(f"fla.ops.{operator}"), f"chunk_{operator}")
    return found


def _filled(x: Float[Tensor, "batch heads n width"]) -> Float[Tensor, "batch heads n filled"]:
    """Zeros up to the next width: features of zero, gates that keep them, values that nobody reads."""
    return F.pad(x, (0, -x.shape[-1] % STEP))
