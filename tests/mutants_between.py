"""More mutants: broken between positions, examples, tensors, calls and modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from mutants import SwallowsKeywords, TakesAnything, breaks
from originals import Hashed, Linear, PlainSoftmax, Projected, ProjectedOptions
from torch import Tensor, nn

from attn_zoo.contract import Geometry, allowed_pairs, hide_rows_without_keys

# --- the definition -------------------------------------------------------------------------------------------------


@breaks("eager_agrees_with_the_definition", "softmax", "of the largest number from the definition")
class HalvesTheScores(PlainSoftmax):
    """Divides scores by twice the root that its own definition names."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query / 2, key, value, key_valid)

    def definition(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key, value, key_valid)


# --- padding ---------------------------------------------------------------------------------------------------------


@breaks("padding_has_no_influence", "softmax", "NaN in padded keys")
class TimesZero(PlainSoftmax):
    """Trusts a weight of zero to remove a value, which fails for NaN."""

    def forward(self, query: Any, key: Any, value: Any, *, key_valid: Tensor | None = None, streams: Any = None) -> Tensor:
        return hide_rows_without_keys(self.attend(query, key, value, key_valid), key_valid)


@breaks("padding_has_no_influence", "softmax", "noise of size 1000 in padded keys, length=33, causal=False: output")
class ForgetsTheMask(SwallowsKeywords):
    """Accepts a mask and ignores it."""


@breaks("padding_has_no_influence", "linear", "must be refused with UnsupportedError, but it ran", can={"key_padding": False})
class TakesMasks(TakesAnything):
    """Takes a mask that the card says it cannot honour."""


@breaks("padding_gets_no_weight", "softmax", "padded keys seem to stay in the normaliser")
class PaddingInTheNormaliser(PlainSoftmax):
    """Gives padded keys, which hold zeros, their share of the weight: the mask reaches only the values."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key, value, None)


@breaks("padding_gets_no_weight", "linear", "padded keys seem to stay in the normaliser")
class ValuesMaskedOnly(Linear):
    """Zeroes padded values and leaves φ(0) = 1 of the padded keys in the normaliser, as a public Performer does."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key, value, None)


@breaks("padding_gets_no_weight", "linear", "fills up the last block seems to take part")
class FillsUpWithZeros(Linear):
    """Fills the last block with zero keys that take part, as a public Nyström attention does."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        missing = -key.shape[2] % 4
        if missing == 0 or self.geometry.causal or key_valid is not None:
            return super().attend(query, key, value, key_valid)
        filled = [F.pad(tensor, (0, 0, 0, missing)) for tensor in (query, key, value)]
        return super().attend(filled[0], filled[1], filled[2], None)[:, :, : query.shape[2]]


@breaks("padded_queries_have_no_influence", "softmax", "padded queries hold noise")
class ScaledByAllQueries(PlainSoftmax):
    """Scales by the largest query of the example, padding included."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query / query.abs().amax(dim=(2, 3), keepdim=True), key, value, key_valid)


@breaks("padding_amounts_to_shorter_inputs", "hashed", "positions padded to")
class PaddingTakesPlaces(Hashed):
    """Lets padding take places in the buckets, as a public Reformer does."""

    def buckets(self, height: Tensor, key_valid: Tensor | None) -> Tensor:
        return height.argsort(dim=-1).argsort(dim=-1) > height.shape[-1] // 2


@breaks("padding_amounts_to_shorter_inputs", "projected", "positions padded to")
class MovesShorterInputs(Projected):
    """Puts shorter inputs at the end of its maps and padded ones at their front."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        keys = key.shape[2]
        return self.attend_compressed(query, self.key_map[:, -keys:] @ key, self.value_map[:, -keys:] @ value)


@breaks("padding_amounts_to_shorter_inputs", "projected", "31 positions padded to 95")
class DoublesForShortInputs(Projected):
    """Weighs inputs that are much too short twice."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        short = self.geometry.keys - key.shape[2] > 40
        return super().attend(query, key * (2 if short else 1), value, key_valid)


@breaks("queries_without_keys_give_zeros", "softmax", "NaN or infinite")
class MinusInfinity(PlainSoftmax):
    """Masks with minus infinity, so that a row without keys is NaN, or at least its gradient is."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        scores = query @ key.mT
        weights = scores.softmax(dim=-1) if allowed is None else scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)
        return (weights @ value).nan_to_num()


@breaks("queries_without_keys_give_zeros", "softmax", "before the first valid key must give zeros")
class MeanOfNothing(PlainSoftmax):
    """Masks with a large negative number, so that a row without keys is a mean of what it may not see."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        allowed = allowed_pairs(query, key, key_valid, causal=self.geometry.causal)
        scores = query @ key.mT
        shown = scores if allowed is None else scores.masked_fill(~allowed, -1e9)
        return shown.softmax(dim=-1) @ (value + 1)


# --- batch and memory ------------------------------------------------------------------------------------------------


@breaks("batch_mates_have_no_influence", "softmax", "batch mates 30 times as large")
class ScaledByTheBatch(PlainSoftmax):
    """Scales by a maximum over the batch, as public Nyström attentions do."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key / key.abs().max().clamp(min=8), value, key_valid)


@breaks("batch_order_has_no_influence", "softmax", "permuted examples")
class NumbersItsRows(PlainSoftmax):
    """Treats examples by their place in the batch."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        place = torch.arange(len(query), dtype=query.dtype)[:, None, None, None]
        return super().attend(query * (1 + place / 10), key, value, key_valid)


@breaks("batch_size_has_no_influence", "linear", "examples against 6")
class CarriesOver(Linear):
    """Works in blocks of a thousand examples and shifts the values of the second by one."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        blocks = [value[:1000], value[1000:].roll(1, dims=0)]
        return super().attend(query, key, torch.cat(blocks), key_valid)


@breaks("memory_layout_has_no_influence", "softmax", "view")
class WantsContiguous(PlainSoftmax):
    """Views memory as it is not laid out."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query.view(-1).view(query.shape), key, value, key_valid)


@breaks("memory_layout_has_no_influence", "softmax", "against contiguous inputs")
class AssumesContiguous(PlainSoftmax):
    """Reads memory as if it were contiguous."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        heads, length, width = query.shape[1:]
        strides = (heads * length * width, length * width, width, 1) if query.stride(0) else (0, length * width, width, 1)
        return super().attend(query.as_strided(query.shape, strides), key, value, key_valid)


@breaks("inputs_are_left_alone", "linear", "writing into the output changed")
class HandsBackItsInput(Linear):
    """Returns the caller's own memory."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return value


@breaks("inputs_are_left_alone", "softmax", "the call changed")
class ScalesInPlace(PlainSoftmax):
    """Scales the caller's queries."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query.mul_(0.5), key, value, key_valid)


# --- state -----------------------------------------------------------------------------------------------------------


@breaks("eval_is_deterministic", "softmax", "two calls in eval mode")
class DropsInEval(PlainSoftmax):
    """Applies dropout whatever the mode."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return F.dropout(super().attend(query, key, value, key_valid), 0.1)


@breaks("eval_is_deterministic", "hashed", "two calls in eval mode")
class HashesAnew(Hashed):
    """Draws its plane at every call, as a public Reformer does."""

    def buckets(self, height: Tensor, key_valid: Tensor | None) -> Tensor:
        return height + torch.randn(1) > 0


@breaks("building_follows_the_seed", "hashed", "plane of two builds under one seed")
class SeedsItself(Hashed):
    """Draws from a generator that torch.manual_seed does not reach."""

    generator = torch.Generator().manual_seed(5)

    def keep_plane(self, plane: Tensor) -> None:
        super().keep_plane(torch.randn(plane.shape, generator=self.generator))


@breaks("state_dict_restores_the_output", "hashed", "after loading the state dict")
class ForgetsItsPlane(Hashed):
    """Leaves what it drew out of the state dict."""

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
    """Keeps what it computed on the class."""

    last: Tensor | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        type(self).last = query.detach()
        return super().attend(query, key, value, key_valid)


@breaks("earlier_calls_leave_no_trace", "hashed", "used module against a fresh one")
class RemembersItsFirstCall(Hashed):
    """Fixes where it cuts by the first input it meets, as a public Reformer fixes its number of buckets."""

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
