"""Cost of a student's attention relative to the teacher's, by formulas and by PyTorch's FLOP counter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from attn_zoo.count import activation_bytes, flops_of
from attn_zoo.integrations.transformers import zoo_layers
from attn_zoo.registry import card
from attn_zoo.transplant.passages import Passages


@dataclass(frozen=True, slots=True)
class Spent:
    """Cost of a student (an encoder whose attention was replaced) for one passage of the full length, in evaluation mode."""

    attention_flops: int
    """Forward FLOPs of the mechanisms of all layers, by their formulas. Projections are excluded, because every mechanism needs
    them."""
    softmax_flops: int
    """Forward FLOPs of softmax attention in the same layers."""
    kept_bytes: int | None
    """Bytes that autograd saves for the backward pass of the mechanisms, in float32 on a CPU. None if they cannot be counted from
    shapes."""
    softmax_kept_bytes: int
    layers: int
    parameters: int
    """Number of parameters that the mechanisms add to those of the teacher."""
    encoder_flops: int
    """Forward FLOPs of the whole student, counted by PyTorch."""
    teacher_flops: int

    @property
    def share(self) -> float:
        """FLOPs of the mechanisms divided by those of softmax attention."""
        return self.attention_flops / self.softmax_flops

    @property
    def layers_saved(self) -> float:
        """FLOPs saved in all layers, divided by the FLOPs of softmax attention in one layer."""
        return (1 - self.share) * self.layers

    @property
    def encoder_share(self) -> float:
        """FLOPs of the student divided by those of the teacher."""
        return self.encoder_flops / self.teacher_flops


def spent(student: Any, teacher_flops: int, passage: Passages) -> Spent:
    """Return the cost of a student.

    Args:
        teacher_flops: result of ``counted_flops`` for the teacher on the same passage.
        passage: one passage of the full length.
    """
    stack = zoo_layers(student)
    kept = [activation_bytes(mechanism.card, mechanism.geometry, mechanism.options) for mechanism in stack]
    softmax, options = card("softmax"), card("softmax").options()
    softmax_kept = [activation_bytes(softmax, mechanism.geometry, options) for mechanism in stack]
    return Spent(
        attention_flops=sum(mechanism.card.cost(mechanism.geometry, mechanism.options).flops for mechanism in stack),
        softmax_flops=sum(softmax.cost(mechanism.geometry, options).flops for mechanism in stack),
        kept_bytes=None if None in kept else sum(each for each in kept if each is not None),
        softmax_kept_bytes=sum(each for each in softmax_kept if each is not None),
        layers=len(stack),
        parameters=sum(p.numel() for mechanism in stack for p in mechanism.parameters()),
        encoder_flops=counted_flops(student, passage),
        teacher_flops=teacher_flops,
    )


@torch.no_grad()
def counted_flops(model: Any, passage: Passages) -> int:
    """Return the FLOPs of one forward pass of ``model``: two for each multiply-add in a matrix product."""
    return flops_of(lambda: model(**passage.call()))
