"""Triton kernels of the package flash-linear-attention, for the ``fla`` implementations."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attn_zoo.kernels.cpu.favor import HIDDEN
from attn_zoo.kernels.derivatives import refuse_graph_of_gradients, refuse_transforms
from attn_zoo.shapes import Keys, KeyValid, Queries

DTYPE = torch.bfloat16
"""Dtype to which queries, keys and values are converted; equal to ``contract.FLA_DTYPE``."""
LOWEST_GATE = -87.0
"""Lower bound of log gates. exp(-87) is about the smallest float32 number. If one log gate were much lower, rounding would
remove the others from their sum.
"""

WIDEST = 256
"""Largest number of channels per head that the kernels of the delta rules support: delta_rule, gated_delta_rule and kda."""
STEP = 16
"""The channels of a head are padded to a multiple of this number, because the kernels do not support all widths."""


def answers(
    operator: str,
    query: Float[Tensor, "batch heads n m"],
    key: Float[Tensor, "batch heads n m"],
    value: Float[Tensor, "batch heads n d"],
    *gates: Float[Tensor, "batch heads n ..."],
    **settings: Any,
) -> Float[Tensor, "batch heads n d"]:
    """Return the outputs of a kernel for a whole sequence, in the dtype of ``value``.

    Args:
        operator: name of the operator in flash-linear-attention.
        *gates: log gates, or the strengths β with which tokens are written to the memory. They keep their dtype; the other
            inputs are converted to ``DTYPE``.
        **settings: keyword arguments of the kernel.

    Raises:
        UnsupportedError: forward mode or torch.func is requested, or, on a backward pass, ``create_graph=True``.
    """
    rows = [_filled(x).to(DTYPE) for x in (query, key, value)]
    weights = [_filled(gate) if gate.dim() == 4 else gate for gate in gates]
    refuse_transforms(*rows, *weights)
    out, _ = kernel(operator)(*(x.transpose(1, 2) for x in (*rows, *weights)), **settings)
    return refuse_graph_of_gradients(out).transpose(1, 2)[..., : value.shape[-1]].to(value.dtype)


def sums_of_past(
    log_query: Float[Tensor, "batch heads n m"], log_key: Float[Tensor, "batch heads n m"], value: Keys, valid: KeyValid
) -> Queries:
    """Return the sums Σⱼ φ(qᵢ)·φ(kⱼ) vⱼ over valid j ≤ i, each multiplied by a positive factor. The factor differs between
    positions i, and is not returned. ``log_query`` and ``log_key`` hold log φ.

    The kernel of gated linear attention computes the sums. Its gates scale earlier sums down when a larger feature follows.
    """
    phi_query = (log_query - log_query.detach().amax(dim=-1, keepdim=True)).exp()
    logs = log_key if valid is None else log_key.masked_fill(~valid[:, None, :, None], HIDDEN)
    highest = logs.detach().amax(dim=-1, keepdim=True).cummax(dim=2).values
    phi_key = (logs - highest).exp()
    phi_key = phi_key if valid is None else phi_key * valid[:, None, :, None]
    # When a key has a larger feature, the gate scales the earlier sums down.
    gate = F.pad(highest[:, :, :-1] - highest[:, :, 1:], (0, 0, 1, 0)).clamp(min=LOWEST_GATE).expand_as(phi_key)
    return answers("gla", phi_query, phi_key, value, gate, scale=1.0)


def kernel(operator: str) -> Callable[..., tuple[Tensor, Any]]:
    """Return the function of flash-linear-attention that computes an operator in chunks, for tensors (batch, n, heads, width)."""
    # Imported here, because the import needs Triton and takes seconds.
    found: Callable[..., tuple[Tensor, Any]] = getattr(importlib.import_module(f"fla.ops.{operator}"), f"chunk_{operator}")
    return found


def _filled(x: Float[Tensor, "batch heads n width"]) -> Float[Tensor, "batch heads n filled"]:
    """Fill up with zeros to a multiple of ``STEP``: features are zero, gates are open, and the outputs there are cut off."""
    return F.pad(x, (0, -x.shape[-1] % STEP))


def without_causality(owner: str) -> str:
    """Return the sentence that states why the implementation ``fla`` does not support bidirectional attention of the mechanism
    ``owner``.
    """
    return f"{owner}:fla must be causal, because fla has no kernel for the bidirectional form; use implementation=eager"
