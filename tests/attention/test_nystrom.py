"""Nyströmformer against three kernels and segments written out in float64, one head at a time."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor
from written_out import HEAD_DIM, HEADS, builder, draw, require_same_in

from attn_zoo.attention.low_rank.nystrom import Nystrom

build = builder(Nystrom, implementation="eager")


def landmarks(tokens: Tensor, m: int) -> Tensor:
    """Return the means of m parts of the rows; the first parts have one row more where m does not divide their number."""
    return torch.stack([part.mean(dim=0) for part in torch.tensor_split(tokens, min(m, len(tokens)))])


def step_by_step(kernel: Tensor, iterations: int) -> Tensor:
    """Iterative pseudo-inverse by Eq. 14 and 15, started from the norms of this one matrix."""
    inverse = kernel.T / (kernel.abs().sum(dim=0).max() * kernel.abs().sum(dim=1).max())
    one = torch.eye(len(kernel), dtype=kernel.dtype)
    for _ in range(iterations):
        az = kernel @ inverse
        inverse = inverse @ (13 * one - az @ (15 * one - az @ (7 * one - az))) / 4
    return inverse


def written_out(built: Nystrom, query: Tensor, key: Tensor, value: Tensor, valid: Tensor) -> Tensor:
    """Nyström attention of one head of one example at a time, on its valid tokens; the convolution covers all positions."""
    o, out = built.options, []
    for b in range(query.shape[0]):
        keep, heads = valid[b].nonzero()[:, 0], []
        for h in range(HEADS):
            q, k, v = (t[b, h, keep] for t in (query, key, value))
            row = torch.zeros_like(query[b, h])
            if len(keep):
                few_q, few_k = landmarks(q, o.landmarks), landmarks(k, o.landmarks)
                kernels = [(x @ y.T / HEAD_DIM**0.5).softmax(-1) for x, y in ((query[b, h], few_k), (few_q, few_k), (few_q, k))]
                row = kernels[0] @ step_by_step(kernels[1], o.iterations) @ kernels[2] @ v
                for i in range(len(row)):
                    for at in range(o.convolution):
                        j = i + at - o.convolution // 2
                        if 0 <= j < len(row) and valid[b, j]:
                            only = torch.eye(len(row), dtype=torch.float64)[i][:, None]
                            row = row + only * built.kernel[h, 0, at, 0] * value[b, h, j]
            heads.append(row)
        out.append(torch.stack(heads))
    return torch.stack(out)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("m", "iterations", "convolution"), [(4, 6, 0), (5, 2, 3), (1, 6, 0), (64, 6, 7)])
def test_equals_the_kernels_written_out(padded, m, iterations, convolution):
    for n in (1, 3, 8, 21):
        built, inputs = build(n, landmarks=m, iterations=iterations, convolution=convolution), draw(n)
        valid = torch.ones(3, n, dtype=torch.bool)
        if padded:
            valid[1, n // 2 :], valid[2, ::3] = False, False
        call, expected = partial(built, *inputs, key_valid=valid if padded else None), written_out(built, *inputs, valid)
        require_same_in(["definition", "eager", "sdpa"], built, call, expected, [*inputs, *built.parameters()], atol=1e-11)
