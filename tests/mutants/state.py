"""Mutants that draw, keep or share what they should not."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_zoo.attention.content.reformer import Reformer
from attn_zoo.attention.linear.linear import Linear
from attn_zoo.attention.low_rank.linformer import Linformer, Options
from attn_zoo.contract import Geometry
from attn_zoo.kernels.buckets import Layout
from mutants.entering import breaks


@breaks("eval_is_deterministic", "softmax", "two calls in eval mode")
def drops_in_eval(attend, self, query, key, value, key_valid):
    """Applies dropout in eval mode, too."""
    return F.dropout(attend(query, key, value, key_valid), 0.1)


@breaks("building_follows_the_seed", "reformer", "rotations of two modules built under one seed")
class SeedsItself(Reformer):
    """Draws from a generator that torch.manual_seed does not reach."""

    generator = torch.Generator().manual_seed(5)

    def draw(self) -> Tensor:
        return torch.randn(super().draw().shape, generator=self.generator)


@breaks("copies_are_independent", "linformer", "after the original was changed")
class RemembersItsMap(Linformer):
    """Reaches its map through a closure, which a deep copy does not follow."""

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.project: Callable[..., tuple[Tensor, Tensor]] = lambda *given: self.maps[0].project(*given)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return self.attend_compressed(query, *self.project(key, value, key_valid))


@breaks("instances_share_nothing", "linformer", "two modules share the memory of ['own_maps.0.weight']")
class SharesItsMap(Linformer):
    """Keeps one parameter for all its modules, as published Linformers with sharing do by accident."""

    shared: ClassVar[dict[tuple[int, ...], nn.Parameter]] = {}

    def __init__(self, geometry: Geometry, options: Options, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        weight = self.maps[0].get_parameter("weight")
        self.maps[0].weight = self.shared.setdefault(tuple(weight.shape), weight)


@breaks("instances_share_nothing", "linear", "the class holds tensors")
class CachesOnTheClass(Linear):
    """Keeps a tensor of the last call on the class."""

    last: Tensor | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
        type(self).last = query.detach()
        return super().attend(query, key, value, key_valid)


@breaks("earlier_calls_leave_no_trace", "reformer", "used module against a fresh one")
class RemembersItsFirstCall(Reformer):
    """Fixes the centre of its buckets by its first input, as a public Reformer fixes its number of buckets."""

    centre: float | None = None

    def _layout(self, query: Tensor, key_valid: Tensor | None) -> Layout:
        self.centre = query.max().item() if self.centre is None else self.centre
        return super()._layout(query - self.centre, key_valid)
