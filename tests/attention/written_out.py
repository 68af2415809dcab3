"""Inputs, masks, projections along the length written out naively, and the comparison with what is written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from attn_zoo.attention.low_rank._projections import MatrixMap
from attn_zoo.attention.low_rank._window_maps import ConvolutionMap, MaxMap, MeanMap, WindowMap
from attn_zoo.contract import Attention, Geometry, LengthMap
from attn_zoo.registry import build_attention

HEADS, HEAD_DIM = 2, 8
M = TypeVar("M", bound=Attention)


def builder(kind: type[M], *, moved: float = 0.0, **usual: Any) -> Callable[..., M]:
    """Return a function that builds a mechanism for n positions in float64, under a seed and in eval mode.

    Args:
        moved: size of random changes of all parameters, some of which start at zero.
        usual: options, unless the function gets others.
    """

    def build(
        n: int = 33,
        *,
        causal: bool = False,
        queries: int | None = None,
        heads: int = HEADS,
        head_dim: int = HEAD_DIM,
        seed: int = 0,
        **options: Any,
    ) -> M:
        torch.manual_seed(seed)
        geometry = Geometry(heads, head_dim, queries or n, n, causal)
        built = build_attention(kind.card.name, geometry, **{**usual, **options}).double().eval()
        assert isinstance(built, kind)
        with torch.no_grad():
            for parameter in built.parameters() if moved else ():
                parameter.add_(moved * torch.randn_like(parameter))
        return built

    return build


def several(
    count: int, n: int = 33, batch: int = 3, *, keys: int | None = None, head_dim: int = HEAD_DIM, scale: float = 1.0
) -> list[Tensor]:
    """Draw tensors in float64, which take gradients: the first of n positions, the others of ``keys``, by default n as well."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(batch, HEADS, n if at == 0 else keys or n, head_dim) for at in range(count)]
    return [(scale * torch.randn(shape, dtype=torch.float64, generator=generator)).requires_grad_() for shape in shapes]


def draw(n: int = 33, batch: int = 3, **changes: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Draw query, key and value, as ``several`` does."""
    query, key, value = several(3, n, batch, **changes)
    return query, key, value


def padding(n: int) -> Tensor:
    """Return which tokens of three examples are real, with padding at the start, at the end and between tokens."""
    valid = shown(n)
    valid[0, : n // 4] = False
    return valid


def shown(n: int, padded: bool = True) -> Tensor:
    """Return which tokens of three examples are real: all, or if padded, all, the first half, and two of three."""
    valid = torch.ones(3, n, dtype=torch.bool)
    if padded:
        valid[1, (n + 1) // 2 :], valid[2, 1::3] = False, False
    return valid


def require_same(got: Tensor, expected: Tensor, leaves: Sequence[Tensor], atol: float = 1e-12, where: str = "") -> None:
    """Require that two outputs are equal up to ``atol``, and that a weighted sum of each has equal gradients."""

    def told(words: str) -> str:
        return f"{where}: {words}" if where else words

    torch.testing.assert_close(got, expected, rtol=0, atol=atol, msg=told)
    weights = torch.linspace(-1, 1, got.numel(), dtype=got.dtype).reshape(got.shape)
    ours, theirs = (
        torch.autograd.grad((out * weights).sum(), leaves, retain_graph=True, materialize_grads=True) for out in (got, expected)
    )
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=100 * atol, msg=told)


def require_same_in(
    forms: Sequence[str],
    built: Attention,
    call: Callable[[], Tensor],
    expected: Tensor,
    leaves: Sequence[Tensor],
    atol: float = 1e-12,
) -> None:
    """Require that ``call``, with ``built`` in each of several implementations, gives the output and the gradients expected."""
    for form in forms:
        built.use(form)
        require_same(call(), expected, leaves, atol, form)


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
