"""Sparse normalisers, α-entmax: pⱼ = [(α-1) sⱼ - τ]₊^(1/(α-1)) with τ such that Σ p = 1; softmax at α = 1, sparsemax at α = 2.

Sparsemax is of Martins and Astudillo 2016 (arXiv:1602.02068), the family and its gradient of Peters et al. 2019
(arXiv:1905.05702). With u = p^(2-α), which is zero where p is, ds = u ∘ (dp - Σ u dp / Σ u).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.library import custom_op

SOFTMAX, ENTMAX15, SPARSEMAX = 1.0, 1.5, 2.0
"""Values of α with closed forms."""

LEAST = 1.01
"""Below it only α = 1 is offered: numbers are raised to the power 1/(α-1), and their rounding with them."""

GROUP = 16
"""Keys of which only the largest one takes part in the first guess of the threshold."""

STEPS = 64
"""No search takes as many: each step of Newton's on a convex function cuts its value times its slope to a quarter at most."""


def check_alpha(owner: str, alpha: float) -> None:
    """Refuse an α without a bounded gradient, or so close to 1 that rounding shows.

    Raises:
        ValueError: naming the mechanism, the rule and the value.
    """
    if alpha != SOFTMAX and not LEAST <= alpha <= SPARSEMAX:
        raise ValueError(
            f"{owner}.alpha is 1 (softmax) or from {LEAST} to 2 (sparsemax; beyond it gradients are unbounded); got {alpha}"
        )


def entmax_over_valid(
    scores: Float[Tensor, "... keys"], allowed: Bool[Tensor, "..."] | None, alpha: float
) -> Float[Tensor, "... keys"]:
    """α-entmax over the last axis restricted to ``allowed``; a row that allows nothing gets zeros.

    ``allowed`` broadcasts against ``scores``; None allows everything. Computed in float32 at least. Only the result is kept
    for the gradient, which can be taken once.
    """
    weights: Tensor = _Entmax.apply(scores.to(torch.promote_types(scores.dtype, torch.float32)), allowed, alpha)
    return weights.to(scores.dtype)


def temper(alpha: float) -> float:
    """What scores are multiplied by before a threshold is taken from them."""
    return 1.0 if alpha == SOFTMAX else alpha - 1


def normalise_(tempered: Float[Tensor, "... keys"], alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Turn tempered scores, -inf where not allowed, into weights in their place.

    Returns:
        The weights, and for each row the largest score and the threshold below it, which ``weights_and_slopes_`` takes.
    """
    top = tempered.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(tempered.dtype).min)
    tau = threshold(tempered.sub_(top), alpha)
    return _raise_(tempered.sub_(tau), alpha), top, tau


def weights_and_slopes_(tempered: Tensor, top: Tensor, tau: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """The weights once more, and u = p^(2-α); one of them in the place of the scores."""
    rest = tempered.sub_(top).sub_(tau)
    if alpha == SOFTMAX:
        return rest.exp_(), rest
    rest = rest.clamp_min_(0)
    if alpha == SPARSEMAX:
        return rest, rest.sign()
    if alpha == ENTMAX15:
        return rest.square(), rest
    u = rest.pow(1 / (alpha - 1) - 1)
    return rest.mul_(u), u


def scores_gradient_(grad_weights: Tensor, u: Tensor) -> Tensor:
    """The gradient of the scores in the place of that of the weights."""
    moved = grad_weights.mul_(u)
    mean = moved.sum(dim=-1, keepdim=True) / u.sum(dim=-1, keepdim=True).clamp(min=0.5)  # at least Σ p, so that only 0 is raised
    return moved.addcmul_(u, mean, value=-1)


def _raise_(rest: Tensor, alpha: float) -> Tensor:
    if alpha == SOFTMAX:
        return rest.exp_()
    rest = rest.clamp_min_(0)
    if alpha == SPARSEMAX:
        return rest
    return rest.square_() if alpha == ENTMAX15 else rest.pow_(1 / (alpha - 1))


def _threshold(shifted: Tensor, alpha: float) -> Tensor:
    """τ for each row of tempered scores whose largest one is zero, or of -inf alone.

    As a norm of order 1/(α-1), ‖[s - τ]₊‖ is convex in τ, and nearly straight; Newton's steps up to where it is one come from
    the left and never go too far. What is left of a row after dropping scores has its τ further left: so the search starts
    among the largest of each group, which are few, and ends among all after two or three steps.
    """
    if alpha == SOFTMAX:
        return shifted.logsumexp(dim=-1, keepdim=True).clamp(min=0)
    tau = shifted.new_full((*shifted.shape[:-1], 1), -1)
    if not shifted.numel():
        return tau
    groups = shifted.shape[-1] // GROUP
    if groups >= GROUP:
        tau = _ascend(shifted[..., : groups * GROUP].unflatten(-1, (GROUP, groups)).amax(dim=-2), tau, alpha)
    return _ascend(shifted, tau, alpha)


def _ascend(shifted: Tensor, tau: Tensor, alpha: float) -> Tensor:
    order, enough = 1 / (alpha - 1), 8 * torch.finfo(shifted.dtype).eps
    rest = torch.empty_like(shifted)
    for _ in range(STEPS):
        torch.sub(shifted, tau, out=rest).clamp_min_(0)
        if alpha == SPARSEMAX:
            norm, slope = rest.sum(dim=-1, keepdim=True), rest.sign_().sum(dim=-1, keepdim=True)  # several times faster than > 0
        elif alpha == ENTMAX15:
            norm = torch.linalg.vector_norm(rest, dim=-1, keepdim=True)
            slope = rest.sum(dim=-1, keepdim=True) / norm
        else:
            powers = rest.pow(order - 1)
            slope, norm = powers.sum(dim=-1, keepdim=True), powers.mul_(rest).sum(dim=-1, keepdim=True).pow_(1 / order)
            slope = slope * norm.pow(1 - order)
        step = ((norm - 1) / slope).nan_to_num_(nan=0.0).clamp_(min=0)  # 0 / 0 in a row of -inf
        tau = tau + step
        if step.max() <= enough:
            break
    return tau


# An operator, because how many steps it takes depends on the numbers: shapes flow through, and torch.compile does not look in.
threshold = custom_op("attn_zoo::entmax_threshold", _threshold, mutates_args=(), schema="(Tensor shifted, float alpha) -> Tensor")


@threshold.register_fake
def _(shifted: Tensor, alpha: float) -> Tensor:
    return shifted.new_empty((*shifted.shape[:-1], 1))


class _Entmax(torch.autograd.Function):
    """Keeps its result and nothing else."""

    @staticmethod
    def forward(scores: Tensor, allowed: Tensor | None, alpha: float) -> Tensor:
        tempered = scores * temper(alpha)
        if allowed is not None:
            tempered = tempered.masked_fill(~allowed, -torch.inf)
        return normalise_(tempered, alpha)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.alpha = inputs[-1]
        ctx.shape = inputs[0].shape
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (weights,), alpha = ctx.saved_tensors, ctx.alpha
        if alpha in (SOFTMAX, SPARSEMAX):
            u = weights if alpha == SOFTMAX else weights.sign()
        else:
            u = weights.sqrt() if alpha == ENTMAX15 else weights.pow(2 - alpha)
        return scores_gradient_(gradient.clone(), u).sum_to_size(ctx.shape), None, None
