"""Softmax, its gradient, dropout of weights, and the log-sum-exp that merges partial softmaxes."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

TILE = 2**18
"""Number of scores in a tile: few enough to stay in a processor's caches from one product to the next."""


def softmax_and_lse(scores: Float[Tensor, "... n"]) -> tuple[Float[Tensor, "... n"], Float[Tensor, "... 1"]]:
    """Return the softmax weights and the log-sum-exp over the last axis of finite scores."""
    weights = scores.softmax(dim=-1)
    # Twice as fast as another sum of exponentials, and many times faster if scores are so low that their exponentials vanish.
    return weights, scores.amax(dim=-1, keepdim=True) - weights.amax(dim=-1, keepdim=True).log_()


def drop_(weights: Float[Tensor, "*shape"], dropout: float, masks: list[Tensor]) -> Float[Tensor, "*shape"]:
    """Apply dropout to the weights in place, and return them. If ``dropout`` is not 0, the mask is appended to ``masks``: 0 for
    dropped weights, and 1 / (1 - dropout) for kept weights.
    """
    if dropout:
        masks.append(torch.empty_like(weights).bernoulli_(1 - dropout).div_(1 - dropout))
        weights.mul_(masks[-1])
    return weights


def masked_softmax_(scores: Float[Tensor, "... keys"], hidden: Bool[Tensor, "..."]) -> Float[Tensor, "... keys"]:
    """Return the softmax over the scores that are not hidden, computed in place if possible. A row whose scores are all hidden
    gets zeros.
    """
    if hidden.numel() < scores.numel():  # several times faster than masked_fill, if the mask serves many rows
        scores = scores.add_(torch.zeros_like(hidden, dtype=scores.dtype).masked_fill_(hidden, float("-inf")))
    else:
        scores = scores.masked_fill_(hidden, float("-inf"))
    sees = scores.amax(dim=-1, keepdim=True) != float("-inf")
    return scores.clamp_(min=torch.finfo(scores.dtype).min).softmax(dim=-1).mul_(sees)  # a row of -inf has no softmax


def softmax_backward_(weights: Tensor, grad_weights: Tensor, kept: Tensor | None) -> Tensor:
    """Return the gradient of the scores. The result overwrites ``grad_weights``, the gradient of the weights after dropout.
    ``kept`` is the dropout mask.
    """
    grad_weights = grad_weights if kept is None else grad_weights.mul_(kept)
    return grad_weights.sub_((grad_weights * weights).sum(dim=-1, keepdim=True)).mul_(weights)
