"""The effective attention matrix A of any mechanism that computes Y = A V for some A of its queries and keys.

A is found by probing: with V = I, Y is A. A value has head_dim numbers only, so that I is given in groups of head_dim keys.
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
"""A V and Y agree within this share of Y where A is the mechanism's matrix: far above rounding in float64, far below a
mechanism's own scale."""


def effective_matrix(mechanism: Attention, inputs: AttentionInputs) -> Float[Tensor, "batch heads queries keys"]:
    """A with Y = A V for the mechanism's own draws and parameters, in float64. Columns of padded keys are zero.

    Streams that start as the values are values here, too.

    Args:
        mechanism: in evaluation mode and float64, as ``build_layers`` leaves it.

    Raises:
        UnsupportedError: at these queries and keys the output is no A V: the values weigh in otherwise than linearly, or
            channels or heads are mixed or weighed apart. The message says which.
    """
    inputs = inputs.double()
    matrix = _probe(mechanism, inputs)
    out = attend(mechanism, inputs)
    _check(mechanism, inputs, matrix, out)
    return matrix


def _probe(mechanism: Attention, inputs: AttentionInputs) -> Tensor:
    """Columns of A, head_dim at a time."""
    keys, width = inputs.value.shape[2:]
    columns = []
    for start in range(0, keys, width):
        count = min(width, keys - start)
        units = torch.zeros_like(inputs.value)
        units[:, :, start : start + count, :count] = torch.eye(count, dtype=units.dtype)
        columns.append(attend(mechanism, replace(inputs, value=units))[..., :count])
    return torch.cat(columns, dim=-1)


def _check(mechanism: Attention, inputs: AttentionInputs, matrix: Tensor, out: Tensor) -> None:
    """Refuse a matrix that does not give the output; say whether linearity is what fails.

    The test of linearity takes other values than the given ones, which might happen to hide what is not linear.
    """
    name = mechanism.card.name
    value = inputs.value
    if inputs.key_valid is not None:
        value = value.masked_fill(~inputs.key_valid[:, None, :, None], 0)
    other = torch.randn(value.shape, generator=torch.Generator().manual_seed(0), dtype=value.dtype)
    second = attend(mechanism, replace(inputs, value=other))
    bent = attend(mechanism, replace(inputs, value=2 * inputs.value - 3 * other)) - (2 * out - 3 * second)
    if (gap := _share(bent, out)) > _ROUNDING:
        raise UnsupportedError(
            f"{name} has no effective attention matrix with these options: its output is not linear in the values "
            f"(2 Y(V) - 3 Y(W) misses Y(2 V - 3 W) by {gap:.2g} of it), as where outputs or values are normalised; "
            "choose options without that, or another attention"
        )
    if (gap := _share(matrix @ value - out, out)) > _ROUNDING:
        raise UnsupportedError(
            f"{name} has no effective attention matrix: its output is linear in the values, but no A V for one A a head "
            f"(it misses by {gap:.2g} of the output), since it treats channels differently or mixes channels or heads"
        )


def _share(gap: Tensor, whole: Tensor) -> float:
    return float(torch.linalg.vector_norm(gap) / torch.linalg.vector_norm(whole).clamp(min=torch.finfo(whole.dtype).tiny))


@dataclass(frozen=True)
class MatrixFacts:
    """What an effective matrix is like beside the exact one, for one head; rows of padding left out."""

    row_sum_least: float
    row_sum_mean: float
    row_sum_most: float
    negative: float
    """Share of entries below zero."""
    zero: float
    """Share of entries that are zero, those that causality or padding hides among them."""
    distance: float
    """‖A - P‖ / ‖P‖, where P is softmax's matrix."""


def matrix_facts(
    matrix: Float[Tensor, "queries keys"], exact: Float[Tensor, "queries keys"], query_valid: Tensor | None = None
) -> MatrixFacts:
    """Row sums, signs, zeros and distance."""
    if query_valid is not None:
        matrix, exact = matrix[query_valid], exact[query_valid]
    sums = matrix.sum(dim=-1)
    # What is below rounding in float64 is none: a product of features leaves 1e-19 where a definition has zero.
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
