"""Positive random features of the softmax kernel (FAVOR+; Choromanski et al. 2021, Lemma 1 and Section 2.4)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.contract import Geometry

FEATURES = "min(8⌈d ln d / 8⌉, n/2)"
"""Rule of ``feature_count``: Theorem 4 asks for m = Θ(d ln d) features, and multiples of 8 run faster on CPUs."""


def feature_count(geometry: Geometry) -> int:
    """Default number of random features."""
    enough = 8 * max(1, math.ceil(geometry.head_dim * math.log(geometry.head_dim) / 8))
    return max(1, min(enough, geometry.keys // 2))


def draw_directions(features: int, head_dim: int, *, orthogonal: bool) -> Float[Tensor, "features head_dim"]:
    """Gaussian directions from torch's global generator; orthogonal ones keep the lengths that independent ones would have."""
    gaussian = torch.randn(features, head_dim)
    if not orthogonal:
        return gaussian
    # Orthogonal within each block of head_dim rows.
    blocks = [_rotation(head_dim) for _ in range(math.ceil(features / head_dim))]
    return torch.cat(blocks)[:features] * gaussian.norm(dim=-1, keepdim=True)


def log_positive_features(
    x: Float[Tensor, "*front n head_dim"], directions: Float[Tensor, "features head_dim"], *, is_key: bool
) -> Float[Tensor, "*front n features"]:
    """log φ(x) for φ(q)·φ(k) ≈ exp(q·k / √d), up to constants that a division cancels: 1/√m, and for queries |x|²/2."""
    x = x * x.shape[-1] ** -0.25
    projected = x @ directions.to(x.dtype).T
    return projected - x.square().sum(dim=-1, keepdim=True) / 2 if is_key else projected


def divide_features(top: Tensor, bottom: Tensor) -> Tensor:
    """Quotient; zero where there is nothing to average, because then ``top`` is zero as well.

    The floor is the root of the smallest number, so that the gradient, which divides by its square, stays finite. Only
    causal rows of inputs far from unit scale can come near it: their best feature and that of every past key differ.
    """
    return top / bottom.clamp(min=torch.finfo(bottom.dtype).tiny ** 0.5)


def _rotation(d: int) -> Float[Tensor, "d d"]:
    """A uniformly drawn orthogonal matrix: QR alone prefers some signs, which would bias the features (Mezzadri 2007)."""
    q, r = torch.linalg.qr(torch.randn(d, d))
    return (q * r.diagonal().sign()).T
