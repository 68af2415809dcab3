"""Mutants that draw, keep or share what they should not."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attn_zoo.contract import Geometry
from mutants.entering import breaks
from mutants.originals import Hashed, Linear, PlainSoftmax, Projected, ProjectedOptions


@breaks("eval_is_deterministic", "softmax", "two calls in eval mode")
class DropsInEval(PlainSoftmax):
    """Applies dropout in eval mode, too."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return F.dropout(super().attend(query, key, value, key_valid), 0.1)


@breaks("eval_is_deterministic", "hashed", "two calls in eval mode")
class HashesAnew(Hashed):
    """Draws its plane at every call, as a public Reformer does."""

    def buckets(self, height: Tensor, key_valid: Tensor | None) -> Tensor:
        return height + torch.randn(1) > 0


@breaks("building_follows_the_seed", "hashed", "plane of two modules built under one seed")
class SeedsItself(Hashed):
    """Draws from a generator that torch.manual_seed does not reach."""

    generator = torch.Generator().manual_seed(5)

    def keep_plane(self, plane: Tensor) -> None:
        super().keep_plane(torch.randn(plane.shape, generator=self.generator))


@breaks("state_dict_restores_the_output", "hashed", "after loading the state dict")
class ForgetsItsPlane(Hashed):
    """Leaves its drawn plane out of the state dict."""

    def keep_plane(self, plane: Tensor) -> None:
        self.register_buffer("plane", plane, persistent=False)


@breaks("copies_are_independent", "projected", "after the original was changed")
class RemembersItsMap(Projected):
    """Reaches its parameter through a closure, which a deep copy does not follow."""

    def __init__(self, geometry: Geometry, options: ProjectedOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.map_of: Callable[[], Tensor] = lambda: self.key_map

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return self.attend_compressed(query, self.map_of() @ key, self.value_map @ value)


@breaks("instances_share_nothing", "projected", "two modules share the memory of ['key_map']")
class SharesItsMap(Projected):
    """Keeps one parameter for all its modules, as published Linformers with sharing do by accident."""

    maps: ClassVar[dict[int, nn.Parameter]] = {}

    def __init__(self, geometry: Geometry, options: ProjectedOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.key_map = self.maps.setdefault(geometry.keys, self.key_map)


@breaks("instances_share_nothing", "linear", "the class holds tensors")
class CachesOnTheClass(Linear):
    """Keeps a tensor of the last call on the class."""

    last: Tensor | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        type(self).last = query.detach()
        return super().attend(query, key, value, key_valid)


@breaks("earlier_calls_leave_no_trace", "hashed", "used module against a fresh one")
class RemembersItsFirstCall(Hashed):
    """Fixes the border of its buckets by its first input, as a public Reformer fixes its number of buckets."""

    cut: float | None = None

    def buckets(self, height: Tensor, key_valid: Tensor | None) -> Tensor:
        self.cut = height.max().item() / 3 if self.cut is None else self.cut
        return height > self.cut


@breaks("earlier_calls_leave_no_trace", "projected", "Inference tensors cannot be saved for backward")
class CachesUnderInference(Projected):
    """Keeps a tensor made under inference mode, which blocks a later gradient, as a public Performer does."""

    scaled: Tensor | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        if self.scaled is None or self.scaled.dtype != value.dtype:
            self.scaled = self.value_map * 1
        return self.attend_compressed(query, self.key_map @ key, self.scaled @ value)
