"""Defects devised without knowledge of the kit, in recurrences, low rank, random features, hashing and a mixture."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attn_zoo.attention.linear._feature_maps import log_positive_features
from attn_zoo.attention.linear.performer import Performer
from attn_zoo.attention.sparse.local import Local
from attn_zoo.contract import Cost, Geometry
from mutants.entering import breaks
from mutants.originals import NoOptions
from mutants.originals_stranger import CHUNK
from mutants.originals_stranger_linear import (
    Decayed,
    Held,
    Segmented,
    Sorted,
    decayed_cost,
    segmented_cost,
)

# --- recurrences by chunks -------------------------------------------------------------------------------------------


@breaks("padding_position_does_not_matter", "decayed", "the real tokens beside padding")
class DecaysOverPadding(Decayed):
    """Lets its memory decay over padding, which writes nothing."""

    def log_gates(self, key: Tensor, valid: Tensor | None) -> Tensor:
        return super().log_gates(key, None)


@breaks("a_prefix_answers_as_the_whole", "decayed", "prefix", can={"stepwise": False}, cost=partial(decayed_cost, size=20))
class DropsTheCarryOfAPartialChunk(Decayed):
    """Reads an incomplete last chunk from an empty state; chunks hold 20 positions."""

    SIZE = 20

    def chunk(self, summed: Tensor, query: Tensor, key: Tensor, value: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
        return super().chunk(summed if key.shape[2] == self.SIZE else 0 * summed, query, key, value, logs)


@breaks("gradients_follow_outputs_at_every_size", "decayed", "slope")
class CutsTheGradient(Decayed):
    """Passes no gradient from a chunk to the one before it."""

    def chunk(self, summed: Tensor, query: Tensor, key: Tensor, value: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
        return super().chunk(summed.detach(), query, key, value, logs)


@breaks("eval_is_deterministic", "decayed", "two calls")
class CarriesOver(Decayed):
    """Starts, in eval mode, from the memory that the previous call left, if that had as many examples."""

    left: Tensor | None = None

    def read(self, summed: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
        if self.left is not None and self.left.shape == summed.shape and not self.training:
            summed = self.left.to(summed)
        out, after = super().read(summed, *inputs)
        self.left = after.detach()
        return out, after


@breaks("steps_leave_their_state_alone", "decayed", "of the state it was given")
class WritesIntoItsState(Decayed):
    """Updates the given state in place where no gradient is recorded."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Held]:
        out, after = super().advance(query, key, value, state, **streams)
        if not torch.is_grad_enabled():
            state.summed.copy_(after.summed)
        return out, after


@breaks("every_size_runs_in_every_type", "decayed", "parameters rounded to torch.bfloat16")
class SumsInTheInputsType(Decayed):
    """Sums token by token in bfloat16, with gates that stay nearly open: a long sum stops growing."""

    def __init__(self, geometry: Geometry, options: NoOptions, implementation: str = "eager") -> None:
        super().__init__(geometry, options, implementation)
        self.bias.data.fill_(8.0)

    def read(self, summed: Tensor, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> tuple[Tensor, Tensor]:
        if value.dtype is not torch.bfloat16:
            return super().read(summed, query, key, value, key_valid)
        memory, outputs = summed.to(value.dtype), []
        gates, keys, values = self.log_gates(key, key_valid).exp(), self.phi(key, key_valid), F.pad(value, (0, 1), value=1.0)
        for t in range(value.shape[2]):
            memory = memory * gates[:, :, t : t + 1] + keys[:, :, t, :, None] * values[:, :, t, None]
            outputs.append(self.phi(query[:, :, t : t + 1]) @ memory)
        return self.divided(torch.cat(outputs, dim=2).float()).to(value.dtype), memory.to(summed.dtype)


@breaks("large_inputs_stay_finite", "decayed", "NaN")
class DividesByGates(Decayed):
    """Divides keys by the product of all gates before them, which overflows where a gate closes."""

    def chunk(self, summed: Tensor, query: Tensor, key: Tensor, value: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
        total = logs.cumsum(dim=2)
        out = ((query * total.exp()) @ (key * (-total).exp()).mT).tril() @ value + (query * total.exp()) @ summed
        last = total[:, :, -1:]
        return out, summed * last.exp() + (key * (last - total).exp()).mT @ value


def full_chunks(geometry: Geometry, options: NoOptions) -> Cost:
    n = max(geometry.keys // CHUNK, 1) * CHUNK
    return decayed_cost(replace(geometry, queries=n, keys=n), options)


def without_normaliser(geometry: Geometry, options: NoOptions) -> Cost:
    state = 4 * geometry.inner_dim * geometry.head_dim if geometry.causal else None
    return replace(decayed_cost(geometry, options), state_bytes=state)


@breaks("cost_formula_is_exact", "decayed", "PyTorch counted", cost=full_chunks)
class CountsWholeChunks(Decayed):
    """States the cost of whole chunks only."""


@breaks("carried_states_stay_as_small_as_stated", "decayed", "bytes", cost=without_normaliser)
class ForgetsItsNormaliser(Decayed):
    """Leaves the normaliser out of the bytes of its state."""


# --- low rank --------------------------------------------------------------------------------------------------------


@breaks("padding_amounts_to_shorter_inputs", "segmented", "positions alone")
class CutsByPlace(Segmented):
    """Cuts segments by place, padding included."""

    def segment(self, valid: Tensor) -> Tensor:
        return super().segment(torch.ones_like(valid))


@breaks("every_position_gets_a_gradient", "segmented", "padded=True")
class ExpectsPaddingBehind(Segmented):
    """Assumes padding at the end: takes the first tokens for valid, as many as there are valid ones."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        if key_valid is not None:
            key_valid = torch.arange(key.shape[2], device=key.device) < key_valid.sum(dim=1, keepdim=True)
        return super().attend(query, key, value, key_valid)


@breaks("cost_formula_is_exact", "segmented", "PyTorch counted", cost=lambda g, o: segmented_cost(replace(g, queries=g.keys), o))
class CountsKeysTwice(Segmented):
    """States the cost of as many queries as keys."""


@breaks("batch_mates_have_no_influence", "segmented", "an example in a batch")
class SegmentsOfTheLongest(Segmented):
    """Cuts all examples into segments as long as those of the example with the most tokens."""

    def segment(self, valid: Tensor) -> Tensor:
        rank, count = valid.cumsum(dim=1) - 1, valid.sum(dim=1, keepdim=True).amax()
        return torch.div(rank * self.options.segments, count.clamp(min=1), rounding_mode="floor")


@breaks("batch_order_has_no_influence", "segmented", "permuted examples")
class RemembersItsSegments(Segmented):
    """Caches the segments of a mask, and reuses them for another mask of the same shape and count."""

    def segment(self, valid: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return super().segment(valid)
        kept: dict[Any, Tensor] = self.__dict__.setdefault("kept", {})
        return kept.setdefault((tuple(valid.shape), int(valid.sum()), str(valid.device)), super().segment(valid))


@breaks("earlier_calls_leave_no_trace", "segmented", "used module")
class NarrowsItsOption(Segmented):
    """Lowers its own option to the length of a short input, and keeps it low for later, long ones."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        self.options.segments = min(self.options.segments, key.shape[2])
        return super().attend(query, key, value, key_valid)


@breaks("gradients_follow_outputs_at_every_size", "segmented", "gradient of key")
class DetachesLongMeans(Segmented):
    """Saves memory on long inputs: no gradient reaches the keys."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        if key.shape[2] > 256:
            key = key.detach()
        return super().attend(query, key, value, key_valid)


# --- random features -------------------------------------------------------------------------------------------------


@breaks("batch_mates_have_no_influence", "features", "an example in a batch against it alone")
class StabilisesTheBatch(Performer):
    """Adds a constant to the features of the keys, relative to the largest feature of the batch."""

    def _log_features(self, x: Tensor, *, is_key: bool) -> Tensor:
        logs = super()._log_features(x, is_key=is_key)
        return ((logs - logs.detach().amax()).exp() + 1e-6).log() if is_key else logs


@breaks("building_follows_the_seed", "features", "directions")
class DrawsWithPython(Performer):
    """Draws features from Python's generator, which torch's seed does not reach."""

    def draw(self) -> Tensor:
        return torch.tensor([[random.gauss(0, 1) for _ in range(self.geometry.head_dim)] for _ in range(self.options.features)])


@breaks("state_dict_restores_the_output", "features", "after loading")
class KeepsAPlainTensor(Performer):
    """Keeps its features as a plain tensor, which no checkpoint holds and no ``to`` moves."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        drawn = self.directions
        del self.directions
        self.directions = drawn


@breaks("state_dict_restores_the_output", "features", "after loading")
class LeavesFeaturesOut(Performer):
    """Leaves its features out of the checkpoint."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.register_buffer("directions", self.directions, persistent=False)


@breaks("padding_amounts_to_shorter_inputs", "features", "positions alone")
class DrawsByLength(Performer):
    """Averages its features with others drawn for each length, from a generator of its own."""

    def _log_features(self, x: Tensor, *, is_key: bool) -> Tensor:
        drawn = torch.randn(self.directions.shape, generator=torch.Generator().manual_seed(x.shape[2])).to(x)
        return log_positive_features(x, (self.directions.to(x.dtype) + drawn) / 2, is_key=is_key)


@breaks("compiled_agrees", "features", "padded=True")
class SkipsTheMaskWhenCompiled(Performer):
    """Ignores the mask when it is compiled."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        return super().attend(query, key, value, None if torch.compiler.is_compiling() else key_valid)


# --- blocks, and hashing ------------------------------------------------------------------------------------------


@breaks("batch_mates_have_no_influence", "window", "an example in a batch")
class BlocksAcrossExamples(Local):
    """Cuts blocks from heads and examples laid end to end."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        if key_valid is not None or query.shape[2] % self.options.block == 0:
            return super().attend(query, key, value, key_valid)
        query, key, ends = (x.flatten(0, 2)[None, None] for x in (query, key, value))
        return super().attend(query, key, ends, None).view_as(value)


@breaks("padding_gets_no_weight", "window", "fill up the last block")
class AttendsToItsFill(Local):
    """Lets the last block attend to the zeros that fill it, where there is no padding."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        n = key.shape[2]
        fill = -n % self.options.block
        query, key, value = (F.pad(x, (0, 0, 0, fill)) for x in (query, key, value))
        return super().attend(query, key, value, None if key_valid is None else F.pad(key_valid, (0, fill)))[:, :, :n]


@breaks("training_keeps_the_promises", "window", "against eval mode")
class ShrinksInEvaluation(Local):
    """Makes its outputs smaller in evaluation."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Tensor:
        out = super().attend(query, key, value, key_valid)
        return out if self.training else out * 0.9


@breaks("outputs_follow_their_own_queries", "sorted", "own quer", can={"key_padding": False})
class SortsBackBySorting(Sorted):
    """Restores the order of outputs by the permutation itself instead of its inverse."""

    def inverse(self, order: Tensor) -> Tensor:
        return order


@breaks("the_process_is_left_as_it_was", "sorted", "draws from")
class SortsUnstably(Sorted):
    """Draws the order of equal projections at random, at every call."""

    def order(self, height: Tensor) -> Tensor:
        shuffled = torch.rand_like(height).argsort(dim=-1)
        return shuffled.gather(-1, height.gather(-1, shuffled).argsort(dim=-1, stable=True))
