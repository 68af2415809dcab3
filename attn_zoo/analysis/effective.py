"""Effective attention matrix of a mechanism: the matrix A for which A V is the output, where V are the values.

A is the output for V = I, the identity matrix. Values have head_dim channels, so A is computed from head_dim columns of I at a
time.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.analysis.inputs import AttentionInputs, attend
from attn_zoo.contract import Attention, UnsupportedError

_ROUNDING = 1e-6
"""Tolerance of the relative difference between A V and the output: far above float64 rounding, far below 1."""


def effective_matrix(mechanism: Attention, inputs: AttentionInputs) -> Float[Tensor, "batch heads queries keys"]:
    """Return the matrix A for which A V is the output of the mechanism, where V are the values. A is in float64, and its columns
    for padded keys are zero.

    The matrix depends on the present parameters and random draws. A mechanism can have additional inputs (streams). If a newly
    built layer computes a stream as a copy of the values, V is also given as this stream.

    Args:
        mechanism: mechanism in evaluation mode and float64, as ``build_layers`` returns it.

    Raises:
        UnsupportedError: there is no such matrix, because the output is not linear in the values, mixes heads or channels, or
            weights the channels of a head differently.
    """
    inputs = inputs.double()
    keys, width = inputs.value.shape[2:]
    columns = []
    for start in range(0, keys, width):
        count = min(width, keys - start)
        units = torch.zeros_like(inputs.value)
        units[:, :, start : start + count, :count] = torch.eye(count, dtype=units.dtype)
        columns.append(attend(mechanism, replace(inputs, value=units))[..., :count])
    matrix = torch.cat(columns, dim=-1)
    _check(mechanism, inputs, matrix)
    return matrix


def _check(mechanism: Attention, inputs: AttentionInputs, matrix: Tensor) -> None:
    """Raise an error if A V differs from the output. If the output is not linear in the values, the message says so.

    Linearity is also tested with random values, because the given values might hide a non-linear term by chance.
    """
    name, value = mechanism.card.name, inputs.value
    if inputs.key_valid is not None:
        value = value.masked_fill(~inputs.key_valid[:, None, :, None], 0)
    other = torch.randn(value.shape, generator=torch.Generator().manual_seed(0), dtype=value.dtype)
    out, second, mixed = (attend(mechanism, replace(inputs, value=v)) for v in (inputs.value, other, 2 * inputs.value - 3 * other))
    whole = torch.linalg.vector_norm(out).clamp(min=torch.finfo(out.dtype).tiny)
    if (gap := float(torch.linalg.vector_norm(mixed - (2 * out - 3 * second)) / whole)) > _ROUNDING:
        raise UnsupportedError(
            f"{name} has no effective attention matrix with these options, because its output is not linear in the values: 2 "
            f"Y(V) - 3 Y(W) and Y(2 V - 3 W) differ by {gap:.2g} of the output. Choose other options or another mechanism"
        )
    if (gap := float(torch.linalg.vector_norm(matrix @ value - out) / whole)) > _ROUNDING:
        raise UnsupportedError(
            f"{name} has no effective attention matrix: its output must be A V with one matrix A per head, but differs from "
            f"every such product by {gap:.2g} of the output. Choose a mechanism that treats all channels of a head alike"
        )


def matrix_facts(matrix: Float[Tensor, "queries keys"], exact: Float[Tensor, "queries keys"]) -> dict[str, float]:
    """Return properties of the effective attention matrix A (``matrix``) of one head, and its distance from softmax's matrix P
    (``exact``):

    - ``row_sum_least``, ``row_sum_mean``, ``row_sum_most``: sums of rows. In softmax's matrix, each row sums to 1.
    - ``negative``, ``zero``: shares of entries below zero, and equal to zero. Masked entries are zero.
    - ``distance``: ‖A - P‖ / ‖P‖.
    """
    sums = matrix.sum(dim=-1)
    # Entries below float64 rounding count as zero: products of features give 1e-19 in place of an exact zero.
    small = 1e-12 * float(matrix.abs().max())
    return {
        "row_sum_least": float(sums.min()),
        "row_sum_mean": float(sums.mean()),
        "row_sum_most": float(sums.max()),
        "negative": float((matrix < -small).double().mean()),
        "zero": float((matrix.abs() <= small).double().mean()),
        "distance": float(torch.linalg.vector_norm(matrix - exact) / torch.linalg.vector_norm(exact)),
    }
