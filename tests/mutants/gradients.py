"""Mutants with missing or wrong gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attn_zoo.contract import UnsupportedError, allowed_pairs
from attn_zoo.kernels.derivatives import GRADIENTS_AND_BATCHES, refuse_transforms
from mutants.entering import breaks, plant

SECOND = "second_derivatives_are_right_or_refused"


@breaks("every_position_gets_a_gradient", "softmax", "key: no gradient at 1 positions (33 queries")
def drops_the_last_key(attend, self, query, key, value, key_valid):
    """Ignores the last key, as rounding down would."""
    seen = torch.ones(len(key), key.shape[2], dtype=torch.bool) if key_valid is None else key_valid.clone()
    seen[:, -1] = False
    return attend(query, key, value, seen)


@breaks("every_position_gets_a_gradient", "longformer", "stream global_value: no gradient at 33 positions")
def ignores_a_stream(attend, self, query, key, value, key_valid, **streams):
    """Requests a stream (a projection) from its layer and does not use it."""
    return attend(query, key, value, key_valid, **{**streams, "global_value": value})


@breaks("every_position_gets_a_gradient", "linformer", "key: no gradient at 24 positions (9 queries, 33 keys")
def as_many_keys_as_queries(attend, self, query, key, value, key_valid):
    """Reads as many keys as there are queries, where there are fewer queries."""
    seen = torch.arange(key.shape[2]) < query.shape[2]
    return attend(query, key * seen[:, None], value * seen[:, None], key_valid)


@breaks("every_parameter_gets_a_gradient", "linformer", "no gradient reaches the parameter idle", method="__init__")
def idle(init, self, *given):
    """Holds a parameter that changes nothing."""
    init(*given)
    self.idle = nn.Parameter(torch.ones(self.geometry.heads))


@breaks("every_parameter_gets_a_gradient", "indexer", "no gradient reaches the parameter index_")
def learns_nothing_of_its_choice(attend, self, query, key, value, key_valid):
    """Chooses by scores that nothing trains, because a choice passes no gradient."""
    out = attend(query, key, value, key_valid)
    self.auxiliary.term = None
    return out


@breaks("gradients_match_finite_differences", "linear", "causal=False")
def detaches_the_normaliser(attend, self, query, key, value, key_valid, **streams):
    """Halves the gradient of the keys, as a normaliser taken for a constant would."""
    return attend(query, key.detach() + 0.5 * (key - key.detach()), value, key_valid)


class WeightsByHand(torch.autograd.Function):
    """A softmax whose backward pass keeps the weights as an attribute, and so as constants."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        ctx.weights = scores.softmax(dim=-1)
        return ctx.weights.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return ctx.weights * (gradient - (gradient * ctx.weights).sum(dim=-1, keepdim=True))


class OnceByHand(WeightsByHand):
    """The same, marked as torch marks such backward passes."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return WeightsByHand.backward(ctx, gradient)


class ReadsTwice(torch.autograd.Function):
    """A softmax whose backward pass reads the saved weights twice, which gradient checkpointing does not allow with a graph."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = scores.softmax(dim=-1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return ctx.saved_tensors[0] * (gradient - (gradient * ctx.saved_tensors[0]).sum(dim=-1, keepdim=True))


class OnlyBackward(torch.autograd.Function):
    """A softmax that torch.func differentiates backward, but neither forward nor for each example of a batch."""

    @staticmethod
    def forward(scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return weights * (gradient - (gradient * weights).sum(dim=-1, keepdim=True))


class RefusesForward(OnlyBackward):
    """The same, refused by name in forward mode."""

    @classmethod
    def apply(cls, scores: Tensor) -> Tensor:
        refuse_transforms(scores, allow=GRADIENTS_AND_BATCHES)
        return super().apply(scores)


def by_hand(softmax: type[torch.autograd.Function]) -> Any:
    def around(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        scores, allowed = query @ key.mT / query.shape[-1] ** 0.5, allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        return softmax.apply(scores) @ value

    return around


def fused(attend: Any, self: Any, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
    allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)


@breaks(SECOND, "softmax", "graph of batched gradients of", method="attend_sdpa")
def loses_graphs_of_batches(attend, self, *given):
    """Fused attention whose gradient, if it is alone, refuses to be differentiated; in a batch its graph is lost."""
    out = fused(attend, self, *given)
    if out.grad_fn is not None:
        out.grad_fn.register_hook(lambda found, _: once_refused(found))
    return out


def once_refused(found: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    for gradient in found:
        if gradient is not None and gradient.grad_fn is not None:
            raise UnsupportedError('second derivatives need implementation="eager"')
    return found


plant("KeepsWeightsAsConstants", "softmax", SECOND, "differs by", by_hand(WeightsByHand))
plant("MarkedAsOnceDifferentiable", "softmax", SECOND, "differs by", by_hand(OnceByHand), method="attend_sdpa")
plant("RefusesWithoutAdvice", "softmax", SECOND, "the error for an unsupported derivative must name", fused, method="attend_sdpa")
plant("ReadsSavedTensorsTwice", "softmax", SECOND, "checkpointed of", by_hand(ReadsTwice), method="attend_sdpa")
plant("HasNoForwardMode", "softmax", SECOND, "func jvp of grad of", by_hand(OnlyBackward), method="attend_sdpa")
plant("HasNoRuleForBatches", "softmax", SECOND, "func vmap of grad of", by_hand(RefusesForward), method="attend_sdpa")
