"""Defects devised without knowledge of the kit, in recurrences, low rank, random features, hashing and a mixture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attn_zoo.attention.linear._chunked import CHUNK, Updates
from attn_zoo.attention.linear._feature_maps import log_positive_features
from attn_zoo.attention.linear.linear import Linear
from attn_zoo.attention.linear.ssd import StateSpaceDuality
from attn_zoo.attention.low_rank.nystrom import landmarks
from attn_zoo.contract import Cost, Geometry, MemoryState
from mutants.entering import breaks
from mutants.originals import ORIGINALS

# --- recurrences by chunks -------------------------------------------------------------------------------------------


def in_pieces(read: Callable[..., Any], size: int, change: Callable[[Tensor, int], Tensor]) -> Callable[..., Any]:
    """Read pieces of ``size`` positions; ``change(S, positions)`` returns the sums that a piece starts with."""

    def reads(state: MemoryState, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Any:
        outputs = []
        for start in range(0, value.shape[2], size):
            piece = slice(start, start + size)
            given = query[:, :, piece], key[:, :, piece], value[:, :, piece]
            valid = None if key_valid is None else key_valid[:, piece]
            begun = replace(state, summed=change(state.summed, given[2].shape[2]))
            out, state = read(begun, *given, valid, **{name: stream[:, :, piece] for name, stream in streams.items()})
            outputs.append(out)
        return torch.cat(outputs, dim=2), state

    return reads


@breaks("a_prefix_answers_as_the_whole", "ssd", "prefix", can={"stepwise": False}, method="read")
def drops_the_carry_of_a_partial_chunk(read, self, state, *inputs, **streams):
    """Reads an incomplete last chunk from an empty state; chunks hold 20 positions."""
    return in_pieces(read, 20, lambda summed, n: summed if n == 20 else 0 * summed)(state, *inputs, **streams)


@breaks("gradients_follow_outputs_at_every_size", "ssd", "slope", method="read")
def cuts_the_gradient(read, self, state, *inputs, **streams):
    """Passes no gradient from a chunk to the one before it."""
    return in_pieces(read, CHUNK, lambda summed, n: summed.detach())(state, *inputs, **streams)


@breaks("eval_is_deterministic", "ssd", "two calls")
class CarriesOver(StateSpaceDuality):
    """Starts, in eval mode, from the memory that the previous call left, if that had as many examples."""

    left: Tensor | None = None

    def read(self, state: MemoryState, *inputs: Any, **streams: Tensor) -> Any:
        if self.left is not None and self.left.shape == state.summed.shape and not self.training:
            state = replace(state, summed=self.left.to(state.summed))
        out, after = super().read(state, *inputs, **streams)
        self.left = after.summed.detach()
        return out, after


@breaks("steps_leave_their_state_alone", "ssd", "of the state it was given", method="advance")
def writes_into_its_state(advance, self, query, key, value, state, **streams):
    """Updates the given state in place where no gradient is recorded."""
    out, after = advance(query, key, value, state, **streams)
    if not torch.is_grad_enabled():
        state.summed.copy_(after.summed)
    return out, after


@breaks("every_size_runs_in_every_type", "linear", "parameters rounded to torch.bfloat16")
class SumsInTheInputsType(Linear):
    """Sums token by token in bfloat16, cutting off what does not fit: a long sum stops growing."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None, **streams: Tensor) -> Tensor:
        self.narrow = value.dtype is torch.bfloat16
        return super().attend(query, key, value, key_valid)

    def read(self, state: MemoryState, query: Tensor, key: Tensor, value: Tensor, key_valid: Tensor | None) -> Any:
        def cut(summed: Tensor, n: int) -> Tensor:
            short = (summed.detach().view(torch.int32) & -(2**16)).view(torch.float32)
            return summed + (short - summed.detach())

        read = in_pieces(super().read, 1, cut) if self.narrow else super().read
        return read(state, query, key, value, key_valid)


@breaks("large_inputs_stay_finite", "ssd", "NaN", method="updates")
def divides_by_gates(updates, self, query, key, value, key_valid, step):
    """Divides keys by the product of all gates before them, which overflows where a gate closes."""
    found = updates(query, key, value, key_valid, step)
    total = found.log_decay.cumsum(dim=2)
    return Updates(found.query * total.exp(), found.key * (-total).exp(), found.value, 0 * total)


def full_chunks(geometry: Geometry, options: Any) -> Cost:
    n = max(geometry.keys // CHUNK, 1) * CHUNK
    return ORIGINALS["ssd"].cost(replace(geometry, queries=n, keys=n), options)


def without_normaliser(geometry: Geometry, options: Any) -> Cost:
    state = 4 * geometry.inner_dim * geometry.head_dim if geometry.causal else None
    return replace(ORIGINALS["linear"].cost(geometry, options), state_bytes=state)


@breaks("cost_formula_is_exact", "ssd", "PyTorch counts", cost=full_chunks)
class CountsWholeChunks(StateSpaceDuality):
    """States the cost of whole chunks only."""


@breaks("carried_states_stay_as_small_as_stated", "linear", "bytes", cost=without_normaliser)
class ForgetsItsNormaliser(Linear):
    """Leaves the normaliser out of the bytes of its state."""


# --- low rank --------------------------------------------------------------------------------------------------------


@breaks("every_position_gets_a_gradient", "agent", "padded=True")
def expects_padding_behind(attend, self, query, key, value, key_valid):
    """Assumes padding at the end: takes the first tokens for valid, as many as there are valid ones."""
    if key_valid is not None:
        key_valid = torch.arange(key.shape[2], device=key.device) < key_valid.sum(dim=1, keepdim=True)
    return attend(query, key, value, key_valid)


@breaks(
    "cost_formula_is_exact", "linear", "PyTorch counts", cost=lambda g, o: ORIGINALS["linear"].cost(replace(g, queries=g.keys), o)
)
class CountsKeysTwice(Linear):
    """States the cost of as many queries as keys."""


@breaks("batch_mates_have_no_influence", "agent", "an example in a batch", method="mixed")
def segments_of_the_longest(mixed, self, softmax, query, key, value, key_valid):
    """Cuts all examples into segments of the positions that hold a token in any of them."""
    held = None if key_valid is None else key_valid.any(dim=0, keepdim=True).expand_as(key_valid)
    (agents,), few = landmarks(self.options.agents, held, query)
    return softmax(query, agents, softmax(agents, key, value, key_valid), few)


@breaks("batch_order_has_no_influence", "agent", "permuted examples", method="mixed")
def remembers_its_segments(mixed, self, softmax, query, key, value, key_valid):
    """Caches the segments of a mask, and reuses them for another mask of the same shape and count."""
    kept: dict[Any, Tensor] = self.__dict__.setdefault("kept", {})
    if key_valid is not None and not torch.compiler.is_compiling():
        key_valid = kept.setdefault((tuple(key_valid.shape), int(key_valid.sum()), str(key_valid.device)), key_valid.clone())
    return mixed(softmax, query, key, value, key_valid)


@breaks("earlier_calls_leave_no_trace", "agent", "used module")
def narrows_its_option(attend, self, query, key, value, key_valid):
    """Lowers its own option to the length of a short input, and keeps it low for later, long ones."""
    self.options.agents = min(self.options.agents, key.shape[2])
    return attend(query, key, value, key_valid)


# --- random features -------------------------------------------------------------------------------------------------


@breaks("state_dict_restores_the_output", "performer", "after loading", method="__init__")
def leaves_features_out(init, self, *given):
    """Leaves its features out of the checkpoint."""
    init(*given)
    self.register_buffer("directions", self.directions, persistent=False)


@breaks("padding_amounts_to_shorter_inputs", "performer", "positions alone", method="_log_features")
def draws_by_length(log_features, self, x, *, is_key):
    """Averages its features with others drawn for each length, from a generator of its own."""
    drawn = torch.randn(self.directions.shape, generator=torch.Generator().manual_seed(x.shape[2])).to(x)
    return log_positive_features(x, (self.directions.to(x.dtype) + drawn) / 2, is_key=is_key)


@breaks("compiled_agrees", "performer", "padded=True")
def skips_the_mask_when_compiled(attend, self, query, key, value, key_valid):
    """Ignores the mask when it is compiled."""
    return attend(query, key, value, None if torch.compiler.is_compiling() else key_valid)


# --- blocks, and hashing ------------------------------------------------------------------------------------------


@breaks("batch_mates_have_no_influence", "local", "an example in a batch")
def blocks_across_examples(attend, self, query, key, value, key_valid):
    """Cuts blocks from heads and examples laid end to end."""
    if key_valid is not None or query.shape[2] % self.options.block == 0:
        return attend(query, key, value, key_valid)
    query, key, ends = (x.flatten(0, 2)[None, None] for x in (query, key, value))
    return attend(query, key, ends, None).view_as(value)


@breaks("training_keeps_the_promises", "local", "against eval mode")
def shrinks_in_evaluation(attend, self, query, key, value, key_valid):
    """Makes its outputs smaller in evaluation."""
    out = attend(query, key, value, key_valid)
    return out if self.training else out * 0.9


@breaks("outputs_follow_their_own_queries", "reformer", "query at their own position", can={"key_padding": False}, method="_layout")
def sorts_back_by_sorting(layout, self, query, key_valid):
    """Restores the order of outputs by the permutation itself instead of its inverse."""
    found = layout(query, key_valid)
    slots, order = found.slot.sort(dim=-1)
    return found._replace(slot=slots.gather(-1, order))
