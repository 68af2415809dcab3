"""References of the kernels in float64, and the random numbers of dropout from their published definition."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.memory import surrounded

TOLERANCE = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Largest relative error, norm over norm. On a GPU, a float32 product is computed as three tf32 products."""


def error(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the difference over the norm of ``expected``; NaN anywhere gives NaN, which fails any comparison."""
    expected = expected.double()
    scale = expected.norm().item()
    return (found.double() - expected).norm().item() / (scale or 1.0)


def assert_close(found: Tensor, expected: Tensor, what: str, loosen: float = 1.0) -> None:
    assert found.shape == expected.shape, f"{what}: {tuple(found.shape)} instead of {tuple(expected.shape)}"
    limit = TOLERANCE[found.dtype] * loosen * (2.5 if found.is_cuda and found.dtype == torch.float32 else 1.0)
    assert error(found, expected) <= limit, f"{what}: error {error(found, expected):.1e} above {limit:.1e} for {found.dtype}"


def attention(query: Tensor, key: Tensor, value: Tensor, kept: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """softmax(Q Kᵀ / √d), the kept weights scaled by 1 / (1 - dropout), times V."""
    weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
    if kept is not None:
        weights = weights * kept / (1 - dropout)
    return weights @ value


def projection(matrix: Tensor, tokens: Tensor, key_valid: Tensor | None) -> Tensor:
    """E X over the valid tokens of each example, one example after the other."""
    out = []
    for example, row in enumerate(tokens):
        keep = slice(None) if key_valid is None else key_valid[example].nonzero()[:, 0]
        out.append(matrix[..., : tokens.shape[-2]][..., keep] @ row[..., keep, :])
    return torch.stack(out)


def differentiate(function, inputs: tuple[Tensor, ...], *rest) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
    """Return the output of ``function``, gradients of the inputs for a fixed random gradient of the output, and that gradient."""
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    out = function(*inputs, *rest)
    generator = torch.Generator().manual_seed(7)
    grad = surrounded(torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype).to(out.device))
    return out.detach(), torch.autograd.grad(out, inputs, grad), grad


def kept_weights(seed: int, dropout: float, batch: int, heads: int, queries: int, keys: int) -> Tensor:
    """Return the mask of weights that dropout keeps, (batch, heads, queries, keys)."""
    head, query, key = np.ogrid[: batch * heads, :queries, :keys]
    counter = [query // 16 * 8 + query % 8, key // 16 * 8 + key % 8, head, np.zeros_like(head)]
    words = philox(counter, seed, rounds=7)
    which = query % 16 // 8 + 2 * (key % 16 // 8)
    bits = np.choose(which, words) >> np.uint64(1)
    return torch.from_numpy(bits >= round(dropout * 2**31)).unflatten(0, (batch, heads))


def philox(counter: list[np.ndarray], seed: int, rounds: int) -> list[np.ndarray]:
    """Philox4x32 of Salmon et al. 2011, Section 3.3: four 32-bit words, stored in 64 bits."""
    low = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = (np.broadcast_to(c, np.broadcast_shapes(*(x.shape for x in counter))).astype(np.uint64) for c in counter)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(rounds):
        product0, product1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            product1 >> np.uint64(32) ^ c1 ^ np.uint64(k0),
            product1 & low,
            product0 >> np.uint64(32) ^ c3 ^ np.uint64(k1),
            product0 & low,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]
