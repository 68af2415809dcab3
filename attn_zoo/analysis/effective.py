"""Effective attention matrix A of a mechanism whose output is Y = A V, where A depends on queries and keys only.

A is computed by probing: V = I gives Y = A. Because values have head_dim channels, I is fed in groups of head_dim columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.analysis.feeding import attend
from attn_zoo.analysis.inputs import AttentionInputs
from attn_zoo.contract import Attention, UnsupportedError

_ROUNDING = 1e-6
"""Tolerance of the relative difference between A V and Y: far above float64 rounding, far below a mechanism's outputs."""


def effective_matrix(mechanism: Attention, inputs: AttentionInputs) -> Float[Tensor, "batch heads queries keys"]:
    """Compute A with Y = A V for the mechanism's random draws and parameters, in float64. Columns of padded keys are zero.

    Streams that are initialised as copies of the values are probed together with them.

    Args:
        mechanism: mechanism in evaluation mode and float64, as ``build_layers`` returns it.

    Raises:
        UnsupportedError: the output is not A V for these queries and keys, because it is not linear in the values, or because
            channels or heads are mixed or weighted separately. The message states which.
    """
    inputs = inputs.double()
    matrix = _probe(mechanism, inputs)
    out = attend(mechanism, inputs)
    _check(mechanism, inputs, matrix, out)
    return matrix


def _probe(mechanism: Attention, inputs: AttentionInputs) -> Tensor:
    """Matrix A, computed head_dim columns at a time."""
    keys, width = inputs.value.shape[2:]
    columns = []
    for start in range(0, keys, width):
        count = min(width, keys - start)
        units = torch.zeros_like(inputs.value)
        units[:, :, start : start + count, :count] = torch.eye(count, dtype=units.dtype)
        columns.append(attend(mechanism, replace(inputs, value=units))[..., :count])
    return torch.cat(columns, dim=-1)


def _check(mechanism: Attention, inputs: AttentionInputs, matrix: Tensor, out: Tensor) -> None:
    """Refuse a matrix A if A V differs from the output; non-linearity in the values has its own message.

    Linearity is tested with random values as well, because the given values might hide a non-linear term by chance.
    """
    name = mechanism.card.name
    value = inputs.value
    if inputs.key_valid is not None:
        value = value.masked_fill(~inputs.key_valid[:, None, :, None], 0)
    other = torch.randn(value.shape, generator=torch.Generator().manual_seed(0), dtype=value.dtype)
    second = attend(mechanism, replace(inputs, value=other))
    nonlinear = attend(mechanism, replace(inputs, value=2 * inputs.value - 3 * other)) - (2 * out - 3 * second)
    if (gap := _relative(nonlinear, out)) > _ROUNDING:
        raise UnsupportedError(
            f"{name} has no effective attention matrix with these options: its output is not linear in the values "
            f"(2 Y(V) - 3 Y(W) differs from Y(2 V - 3 W) by {gap:.2g} of it), as when outputs or values are normalised; "
            "choose options without that, or another attention"
        )
    if (gap := _relative(matrix @ value - out, out)) > _ROUNDING:
        raise UnsupportedError(
            f"{name} has no effective attention matrix: its output is linear in the values, but not A V with one matrix A for each "
            f"head (the difference is {gap:.2g} of the output), since it treats channels differently or mixes channels or heads"
        )


def _relative(gap: Tensor, whole: Tensor) -> float:
    return float(torch.linalg.vector_norm(gap) / torch.linalg.vector_norm(whole).clamp(min=torch.finfo(whole.dtype).tiny))


@dataclass(frozen=True)
class MatrixFacts:
    """Properties of one head's effective matrix and its distance from softmax's matrix; rows of padding are excluded."""

    row_sum_least: float
    """Smallest sum of a row; each row of softmax's matrix sums to 1."""
    row_sum_mean: float
    row_sum_most: float
    negative: float
    """Share of entries below zero."""
    zero: float
    """Share of zero entries, masked ones included."""
    distance: float
    """Distance ‖A - P‖ / ‖P‖ from softmax's matrix P."""


def matrix_facts(
    matrix: Float[Tensor, "queries keys"], exact: Float[Tensor, "queries keys"], query_valid: Tensor | None = None
) -> MatrixFacts:
    """Compute the properties of an effective matrix, and its distance from softmax's matrix ``exact``."""
    if query_valid is not None:
        matrix, exact = matrix[query_valid], exact[query_valid]
    sums = matrix.sum(dim=-1)
    # Entries below float64 rounding count as zero: products of features give 1e-19 in place of an exact zero.
    small = 1e-12 * float(matrix.abs().max())
    distance = torch.linalg.vector_norm(matrix - exact) / torch.linalg.vector_norm(exact)
    return MatrixFacts(
        row_sum_least=float(sums.min()),
        row_sum_mean=float(sums.mean()),
        row_sum_most=float(sums.max()),
        negative=float((matrix < -small).double().mean()),
        zero=float((matrix.abs() <= small).double().mean()),
        distance=float(distance),
    )
