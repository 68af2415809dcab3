"""α-entmax, which replaces softmax: pⱼ = [(α-1) sⱼ - τ]₊^(1/(α-1)), with τ such that Σ p = 1. α = 1 is softmax, and α = 2 is
sparsemax.

Sparsemax is from Martins and Astudillo 2016 (arXiv:1602.02068). The family and its algorithms are from Peters et al. 2019
(arXiv:1905.05702).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attn_zoo.contract import Bound, softmax_over_valid

SOFTMAX, ENTMAX15, SPARSEMAX = 1.0, 1.5, 2.0
"""Values of α for which the weights have a closed form."""

LEAST = 1.01
"""Smallest accepted α above 1. With a smaller α, the power 1/(α-1) would amplify rounding errors too much."""

ALPHA = Bound(
    lambda alpha: alpha == SOFTMAX or LEAST <= alpha <= SPARSEMAX,
    f"must be 1 (softmax) or from {LEAST} to 2 (sparsemax)",
)
"""Accepted values of α. Above 2, gradients would be unbounded. Close to 1, rounding errors would be amplified."""

STEPS = 24
"""Number of Newton steps for values of α without a closed form. With Σ p the sum of the weights, each step divides
the product of Σ p - 1 and the slope of Σ p by four or more.
"""


def entmax_over_valid(
    scores: Float[Tensor, "... keys"], allowed: Bool[Tensor, "..."] | None, alpha: float
) -> Float[Tensor, "... keys"]:
    """Return α-entmax over the entries of the last axis for which ``allowed`` is True. A row without such entries gets zeros.

    ``allowed`` broadcasts against ``scores``. None allows all entries. Everything is computed in float32 or more.
    """
    dtype, order = torch.promote_types(scores.dtype, torch.float32), 1 / (alpha - 1) if alpha > SOFTMAX else 0.0
    if alpha == SOFTMAX or not scores.numel():
        return softmax_over_valid(scores.to(dtype), allowed).to(scores.dtype)
    s = (alpha - 1) * scores.to(dtype)
    if allowed is not None:
        s = s.masked_fill(~allowed, torch.finfo(dtype).min)
    s = s - s.detach().amax(dim=-1, keepdim=True)
    tau, slope = threshold(s.detach(), alpha)
    # At this τ, Σ p = 1 up to rounding; two more Newton steps leave its value and give it first and second gradients.
    for _ in range(2):
        tau = tau + (positive_power(s - tau, order).sum(dim=-1, keepdim=True) - 1) / slope
    weights = positive_power(s - tau, order)
    return (weights if allowed is None else weights.masked_fill(~allowed, 0)).to(scores.dtype)


def positive_power(x: Tensor, order: float) -> Tensor:
    """Return [x]₊^order. If x is at most 0, this power and its first and second derivatives are zero. NaN stays NaN."""
    zero = x <= 0
    return torch.where(zero, 0, torch.where(zero, 1, x).pow(order))


def entmax_by_bisection(
    scores: Float[Tensor, "... keys"], allowed: Bool[Tensor, "..."] | None, alpha: float
) -> Float[Tensor, "... keys"]:
    """Return α-entmax of the scores. The threshold τ is found by bisection between m - 1 and m, where m is α - 1 times the largest
    score. The gradient of τ follows from the condition that the weights sum to one.
    """
    if alpha == SOFTMAX:
        return softmax_over_valid(scores, allowed)
    s, order = (alpha - 1) * scores, 1 / (alpha - 1)
    s = s if allowed is None else s.masked_fill(~allowed, -1e30)
    with torch.no_grad():
        high = s.amax(dim=-1, keepdim=True)
        low = high - 1
        for _ in range(80):
            middle = (low + high) / 2
            above = (s - middle).clamp(min=0).pow(order).sum(dim=-1, keepdim=True) >= 1
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        slope = order * torch.where(s > low, (s - low).clamp(min=0).pow(order - 1), 0).sum(dim=-1, keepdim=True)
    tau = low + ((s - low).clamp(min=0).pow(order).sum(dim=-1, keepdim=True) - 1) / slope
    weights = (s - tau).clamp(min=0).pow(order)
    return weights if allowed is None else weights.masked_fill(~allowed, 0)


@torch.no_grad()
def threshold(s: Float[Tensor, "... keys"], alpha: float) -> tuple[Float[Tensor, "... 1"], Float[Tensor, "... 1"]]:
    """Return for each row the threshold τ, and minus the derivative of the sum of the weights by τ. The scores ``s`` must already
    be multiplied by α - 1, and shifted to a maximum of zero.

    If α is 1.5 or 2, sorting gives the exact τ. For each k, the k highest scores give a candidate, which is possible if it is below
    these scores. τ is the possible candidate with the largest k. For other α, Newton's method finds τ.
    """
    order = 1 / (alpha - 1)
    if alpha in (ENTMAX15, SPARSEMAX):
        ordered = s.clamp(min=-2).sort(dim=-1, descending=True).values  # scores below -1 have no weight
        size = torch.arange(1, s.shape[-1] + 1, dtype=s.dtype, device=s.device)
        mean = ordered.cumsum(dim=-1) / size
        variance = ordered.square().cumsum(dim=-1) / size - mean.square()
        taus = mean - (1 / size if alpha == SPARSEMAX else (1 / size - variance).clamp(min=0).sqrt())
        support = (taus < ordered).sum(dim=-1, keepdim=True).clamp(min=1)  # NaN compares as False
        tau = taus.gather(-1, support - 1)
    else:  # the norm ‖[s - τ]₊‖ of this order is convex and nearly linear in τ: Newton steps from -1 upward never overshoot
        tau = torch.full_like(s[..., :1], -1)
        for _ in range(STEPS):
            above = (s - tau).clamp(min=0)
            power = above.pow(order - 1)
            mass = (power * above).sum(dim=-1, keepdim=True)
            tau = tau + (mass - mass.pow(1 - 1 / order)).clamp(min=0) / power.sum(dim=-1, keepdim=True)
    return tau, order * positive_power(s - tau, order - 1).sum(dim=-1, keepdim=True)
