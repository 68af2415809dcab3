"""α-entmax, computed in place by Newton's method, and entmax attention in blocks of queries. No weights are saved."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.library import custom_op

from attn_zoo.kernels.cpu._softmax import drop_
from attn_zoo.kernels.cpu._tiling import score_blocks
from attn_zoo.kernels.derivatives import OnceDifferentiable
from attn_zoo.precision import without_autocast
from attn_zoo.shapes import Keys, KeyValid, Queries

SOFTMAX, ENTMAX15, SPARSEMAX = 1.0, 1.5, 2.0
"""Values of α with closed forms."""

GROUP = 16
"""Number of scores in a group. The first estimate of the threshold uses only the largest score of each group."""

# On a convex function, each step divides the product of value and slope by four or more.
STEPS = 64
"""Maximum number of Newton steps; fewer are always enough."""


def temper(alpha: float) -> float:
    """Return the factor by which scores are multiplied before the threshold is computed: α - 1, or 1 for softmax."""
    return 1.0 if alpha == SOFTMAX else alpha - 1


def normalise_(tempered: Float[Tensor, "... keys"], alpha: float) -> tuple[Tensor, Tensor, Tensor]:
    """Overwrite ``tempered`` with the weights of α-entmax. ``tempered`` must hold the scores multiplied by ``temper(alpha)``,
    and -inf at hidden keys.

    Returns:
        The weights and, for each row, the largest entry of the given ``tempered`` (``top``) and the threshold minus ``top``.
        ``weights_and_slopes_`` needs the last two.
    """
    top = tempered.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(tempered.dtype).min)
    tau = threshold(tempered.sub_(top), alpha)
    return _raise_(tempered.sub_(tau), alpha), top, tau


def weights_and_slopes_(tempered: Tensor, top: Tensor, tau: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Recompute the weights p, and return p and u = p^(2-α), which ``scores_gradient_`` needs. ``top`` and ``tau`` are results
    of ``normalise_``. ``tempered`` is overwritten.
    """
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
    """Return the gradient of the scores. The result overwrites the gradient of the weights. ``u`` is a result of
    ``weights_and_slopes_``.
    """
    grad_weights = grad_weights.mul_(u)
    # Σ u is at least Σ p, so that the floor changes only sums that are zero.
    mean = grad_weights.sum(dim=-1, keepdim=True) / u.sum(dim=-1, keepdim=True).clamp(min=0.5)
    return grad_weights.addcmul_(u, mean, value=-1)


def _raise_(rest: Tensor, alpha: float) -> Tensor:
    if alpha == SOFTMAX:
        return rest.exp_()
    rest = rest.clamp_min_(0)
    if alpha == SPARSEMAX:
        return rest
    return rest.square_() if alpha == ENTMAX15 else rest.pow_(1 / (alpha - 1))


def _threshold(shifted: Tensor, alpha: float) -> Tensor:
    """Return the threshold τ of each row of multiplied scores. The largest score of a row is zero, or all its scores are -inf.

    The norm of order 1/(α-1), ‖[s - τ]₊‖, is convex and nearly linear in τ; Newton steps from the left towards the value one never
    overshoot. A subset of a row has a lower τ. So the search starts with the maxima of groups, which are few, and ends with all
    scores after two or three steps.
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
            # sign_() is several times faster than rest > 0
            norm, slope = rest.sum(dim=-1, keepdim=True), rest.sign_().sum(dim=-1, keepdim=True)
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


# A custom operator, because its number of steps depends on the data: torch.compile takes its shapes and does not trace it.
threshold = custom_op("attn_zoo::entmax_threshold", _threshold, mutates_args=(), schema="(Tensor shifted, float alpha) -> Tensor")


@threshold.register_fake
def _(shifted: Tensor, alpha: float) -> Tensor:
    return shifted.new_empty((*shifted.shape[:-1], 1))


def entmax_attention(
    query: Queries, key: Keys, value: Keys, key_valid: KeyValid, alpha: float, *, causal: bool, dropout: float = 0.0
) -> Queries:
    """Return α-entmax(Q Kᵀ / √d) V, computed head by head in blocks of queries. There are no second derivatives."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    valid = None if key_valid is None else key_valid.repeat_interleave(query.shape[1], dim=0)
    with without_autocast(query.device):
        flat = (t.to(dtype).flatten(0, 1) for t in (query, key, value))
        out: Tensor = _InBlocks.run(*flat, valid, alpha, causal, dropout)
    return out.unflatten(0, query.shape[:2]).to(query.dtype)


class _InBlocks(OnceDifferentiable):
    """Autograd function over (batch · heads, length, head_dim). It saves its inputs, two numbers per query, and the dropout
    masks.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, valid: Tensor | None, alpha: float, causal: bool, dropout: float
    ) -> Tensor:
        tempered = key * (temper(alpha) * key.shape[-1] ** -0.5)
        out, marks, masks = torch.empty_like(query), query.new_empty(*query.shape[:2], 2), list[Tensor]()
        for heads, rows, seen in score_blocks(query, key, causal):
            scores = _scores(query[heads, rows], tempered[heads, seen], None if valid is None else valid[heads, seen], rows, causal)
            weights, top, tau = normalise_(scores, alpha)
            marks[heads, rows] = torch.cat([top, tau], dim=-1)
            out[heads, rows] = drop_(weights, dropout, masks) @ value[heads, seen]
        ctx.save_for_backward(query, key, value, valid, marks, *masks)
        ctx.alpha, ctx.causal = alpha, causal
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, valid, marks, *masks = ctx.saved_tensors
        alpha, scale, kept = ctx.alpha, key.shape[-1] ** -0.5, iter(masks)
        tempered = key * (temper(alpha) * scale)
        grad_query, grad_key, grad_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for heads, rows, seen in score_blocks(query, key, ctx.causal):
            allowed = None if valid is None else valid[heads, seen]
            own, grad_rows, mask = query[heads, rows], gradient[heads, rows], next(kept, None)
            scores = _scores(own, tempered[heads, seen], allowed, rows, ctx.causal)
            top, tau = marks[heads, rows].split(1, dim=-1)
            weights, u = weights_and_slopes_(scores, top, tau, alpha)
            grad_value[heads, seen].baddbmm_((weights if mask is None else weights * mask).mT, grad_rows)
            grad_weights = grad_rows @ value[heads, seen].mT
            grad_scores = scores_gradient_(grad_weights if mask is None else grad_weights.mul_(mask), u)
            grad_query[heads, rows] = grad_scores @ key[heads, seen]
            grad_key[heads, seen].baddbmm_(grad_scores.mT, own)
        return grad_query.mul_(scale), grad_key.mul_(scale), grad_value, None, None, None, None


def _scores(query: Tensor, key: Tensor, valid: Tensor | None, rows: slice, causal: bool) -> Float[Tensor, "heads rows seen"]:
    """Return the scores of a block, with -inf at hidden keys."""
    scores = query @ key.mT
    if valid is not None:
        scores = scores.masked_fill_(~valid[:, None], -torch.inf)
    if causal:
        later = torch.ones(query.shape[1], query.shape[1], dtype=torch.bool, device=query.device).triu(1)
        scores[..., rows.start :].masked_fill_(later, -torch.inf)
    return scores
