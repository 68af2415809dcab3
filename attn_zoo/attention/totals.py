"""Softmax with the log-sum-exp that its weights are relative to, so that softmaxes over parts can be merged into one."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def softmax_and_total(scores: Float[Tensor, "... n"]) -> tuple[Float[Tensor, "... n"], Float[Tensor, "... 1"]]:
    """Weights and log-sum-exp over the last axis, of finite scores.

    The largest weight is the exponential of the largest score less the log-sum-exp. That is twice as fast as another sum of
    exponentials, and many times where scores are so low that their exponentials vanish.
    """
    weights = scores.softmax(dim=-1)
    return weights, scores.amax(dim=-1, keepdim=True) - weights.amax(dim=-1, keepdim=True).log_()
