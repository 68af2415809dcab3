"""Positive random features of the softmax kernel (FAVOR+; Choromanski et al. 2021, Lemma 1 and Section 2.4)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attn_zoo.contract import Geometry
from attn_zoo.shapes import Keys

FEATURES = "min(8⌈d ln d / 8⌉, n/2)"
"""Formula of the default number of features, for tables. Theorem 4 of Choromanski et al. 2021 requires Θ(d ln d) features.
Multiples of 8 run faster on CPUs.
"""


def feature_count(geometry: Geometry) -> int:
    """Return the default number of random features."""
    enough = 8 * max(1, math.ceil(geometry.head_dim * math.log(geometry.head_dim) / 8))
    return max(1, min(enough, geometry.keys // 2))


def draw_directions(features: int, head_dim: int, *, orthogonal: bool) -> Float[Tensor, "m head_dim"]:
    """Return random directions: Gaussian vectors from torch's global generator. If ``orthogonal`` is true, the vectors of each
    block of head_dim are made orthogonal to each other, and keep their lengths.

    The vectors have the default dtype of torch. They are drawn in float32 or more, because torch has no QR decomposition in 16
    bits.
    """
    default = torch.get_default_dtype()
    dtype = torch.promote_types(default, torch.float32)
    gaussian = torch.randn(features, head_dim, dtype=dtype)
    if not orthogonal:
        return gaussian.to(default)
    blocks = [_rotation(head_dim, dtype) for _ in range(math.ceil(features / head_dim))]
    return (torch.cat(blocks)[:features] * gaussian.norm(dim=-1, keepdim=True)).to(default)


def log_positive_features(x: Keys, directions: Float[Tensor, "m head_dim"], *, is_key: bool) -> Float[Tensor, "batch heads keys m"]:
    """Return log φ(x), where φ(q)·φ(k) ≈ exp(q·k / √d). Two factors of φ are left out, because they cancel when outputs are divided
    by the sum of weights: 1/√m for m features and, for queries, exp(−|x|²/2).
    """
    x = x * x.shape[-1] ** -0.25
    projected = x @ directions.to(x.dtype).T
    return projected - x.square().sum(dim=-1, keepdim=True) / 2 if is_key else projected


def _rotation(d: int, dtype: torch.dtype) -> Float[Tensor, "d d"]:
    """Return a uniformly distributed orthogonal matrix. Without the signs, QR is not uniform and would bias the features (Mezzadri
    2007).
    """
    q, r = torch.linalg.qr(torch.randn(d, d, dtype=dtype))
    return (q * r.diagonal().sign()).T
