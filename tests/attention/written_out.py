"""Inputs, masks, projections along the length written out naively, and the comparison with what is written out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attn_zoo.attention.low_rank._projections import MatrixMap
from attn_zoo.attention.low_rank._window_maps import ConvolutionMap, MaxMap, MeanMap, WindowMap
from attn_zoo.contract import LengthMap

HEADS, HEAD_DIM = 2, 8


def draw(n: int = 33, batch: int = 3, *, keys: int | None = None, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Draw query, key and value in float64, which take gradients; as many keys as queries, if not stated."""
    generator = torch.Generator().manual_seed(1)

    def normal(length: int) -> Tensor:
        return (scale * torch.randn(batch, HEADS, length, HEAD_DIM, dtype=torch.float64, generator=generator)).requires_grad_()

    return normal(n), normal(keys or n), normal(keys or n)


def shown(n: int, padded: bool = True) -> Tensor:
    """Return which tokens of three examples are real: all, or if padded, all, the first half, and two of three."""
    valid = torch.ones(3, n, dtype=torch.bool)
    if padded:
        valid[1, (n + 1) // 2 :], valid[2, 1::3] = False, False
    return valid


def require_same(got: Tensor, expected: Tensor, leaves: Sequence[Tensor], atol: float = 1e-12) -> None:
    """Require that two outputs are equal up to ``atol``, and that a weighted sum of each has equal gradients."""
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)
    weights = torch.linspace(-1, 1, got.numel(), dtype=got.dtype).reshape(got.shape)
    grads = [torch.autograd.grad((out * weights).sum(), leaves, materialize_grads=True) for out in (got, expected)]
    for mine, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=100 * atol)


def projected(map_: LengthMap, tokens: Tensor, role: int, copy: int, keep: Tensor) -> Tensor:
    """Project one head's tokens (keys, head_dim), of which only the positions ``keep`` are valid; empty windows are left out."""
    if isinstance(map_, MatrixMap):
        weight = _own(map_.weight, role, copy)
        return torch.stack([torch.outer(weight[:, n], tokens[n]) for n in keep.tolist()]).sum(dim=0)
    assert isinstance(map_, WindowMap)
    window = math.ceil(map_.length / map_.k)
    found = []
    for start in range(0, len(tokens), window):
        inside = [n for n in keep.tolist() if start <= n < start + window]
        if not inside:
            continue
        if isinstance(map_, MeanMap):
            found.append(tokens[inside].sum(dim=0) / len(inside))
        elif isinstance(map_, MaxMap):
            found.append(tokens[inside].max(dim=0).values)
        else:
            assert isinstance(map_, ConvolutionMap)
            taps = _own(map_.weight, role, copy).unflatten(0, (window, -1))
            found.append(torch.stack([tokens[n] @ taps[n - start] for n in inside]).sum(dim=0))
    return torch.stack(found)


def _own(weight: Tensor, role: int, copy: int) -> Tensor:
    """Return a head's own E or F (role 0 or 1), or the one that it shares."""
    return weight[role if len(weight) == 2 else 0, copy if weight.shape[1] > 1 else 0]
