"""Mutants that fail when a sequence is read in steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attn_zoo.attention.linear.linear import Linear
from attn_zoo.contract import Cost, Geometry, MemoryState
from mutants.entering import breaks
from mutants.originals import PlainSoftmax


@breaks("stepwise_matches_full", "linear", "output of 33 tokens, in pieces of random lengths, against one call")
class CarriesNothing(Linear):
    """Starts every piece from an empty state."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        return super().advance(query, key, value, replace(state, summed=torch.zeros_like(state.summed)))


@breaks("stepwise_matches_full", "linear", "output of 33 tokens, in pieces of random lengths, against one call")
class ForgetsTheLastToken(Linear):
    """Carries a state that lacks the last token of each piece."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        out, after = super().advance(query, key, value, state)
        if value.shape[2] == 1:
            return out, replace(state, position=after.position)
        return out, replace(super().advance(query[:, :, 1:], key[:, :, :-1], value[:, :, :-1], state)[1], position=after.position)


@breaks("stepwise_matches_full", "linear", "token by token")
class ForgetsSingleTokens(Linear):
    """Has a path for single tokens that does not add the eighth token to the state."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        out, after = super().advance(query, key, value, state)
        return out, replace(state, position=after.position) if value.shape[2] == 1 and state.position == 7 else after


@breaks("stepwise_matches_full", "linear", "a step with torch.float16 inputs returns torch.float32")
class AnswersInTheDtypeOfItsState(Linear):
    """Returns the outputs of steps in the dtype in which it computes them."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        out, after = super().advance(query, key, value, state)
        return out.to(state.summed.dtype), after


@breaks("stepwise_matches_full", "linear", "float16 outputs in steps and in one call differ")
class ForgetsInSixteenBits(Linear):
    """Starts every piece of 16 bits from an empty state."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        kept = 0.0 if value.dtype.itemsize == 2 else 1.0
        return super().advance(query, key, value, replace(state, summed=state.summed * kept))


@breaks("stepwise_matches_full", "linear", "gradient of key of 33 tokens")
class DetachesItsState(Linear):
    """Passes no gradient through the carried state."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        return super().advance(query, key, value, replace(state, summed=state.summed.detach()))


@breaks(
    "stepwise_matches_full", "softmax", "cannot be called step by step, because it has no recurrent state", can={"stepwise": True}
)
class StepwiseInName(PlainSoftmax):
    """Claims to read in steps and carries no state."""

    def initial_state(self, batch: int, *, dtype: torch.dtype = torch.float32, device: Any = None) -> MemoryState:
        return MemoryState(torch.zeros(batch))


@breaks("stepwise_matches_full", "linear", "stepwise (initial_state) is not declared", can={"stepwise": False})
class StepsInSecret(Linear):
    """Has a state and steps that its card does not claim."""


@breaks("request_checking_is_inherited", "linear", "overrides step; write advance instead")
class StepsUnchecked(Linear):
    """Skips the check of the requests of its steps."""

    def step(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Any]:
        return self.advance(query, key, value, state)


@breaks("card_is_complete", "linear", "declares stepwise without causal", can={"causal": False})
class StepsWithoutOrder(Linear):
    """Claims steps without causality, where every token sees all others."""


@breaks("steps_leave_their_state_alone", "linear", "changed summed[0] of the state")
class WritesInPlace(Linear):
    """Updates the sums in place, so that a sequence cannot continue from the same state twice."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        out, after = super().advance(query, key, value, state)
        return out, replace(after, summed=state.summed.copy_(after.summed))


@breaks("steps_leave_their_state_alone", "linear", "after 33 tokens, state.position must be 33; got 1")
class CountsCalls(Linear):
    """Counts pieces instead of tokens in its position."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        out, after = super().advance(query, key, value, state)
        return out, replace(after, position=state.position + 1)


@dataclass
class Soft:
    """State whose fields can be assigned, as it is not frozen."""

    summed: Tensor
    position: int
    nbytes: int


@breaks("steps_leave_their_state_alone", "linear", "Soft, the class of the state, is not frozen")
class HandsOutItsInside(Linear):
    """Carries a state that is not frozen."""

    def initial_state(self, batch: int, *, dtype: torch.dtype = torch.float32, device: Any = None) -> Any:
        first = super().initial_state(batch, dtype=dtype, device=device)
        return Soft(first.summed, first.position, first.nbytes)

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        return super().advance(query, key, value, MemoryState(state.summed, state.position))


@dataclass(frozen=True)
class Cached(MemoryState):
    """State of sums and of keys that they were made of."""

    keys: tuple[Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        return self.summed.nbytes + sum(key.nbytes for key in self.keys)


@breaks("carried_states_stay_as_small_as_stated", "linear", "after 165 tokens of 1 examples the state has")
class KeepsKeysAsWell(Linear):
    """States a memory of fixed size and keeps the keys of late tokens as well."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        out, after = super().advance(query, key, value, state)
        kept = (*getattr(state, "keys", ()), *((key.clone(),) if after.position > 160 else ()))
        return out, Cached(after.summed, after.position, kept)


@breaks("carried_states_stay_as_small_as_stated", "linear", "has 576 bytes, but it keeps tensors of 1152 bytes in memory")
class KeepsTheOldSums(Linear):
    """Keeps a view of a tensor that also holds the sums before the step."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        out, after = super().advance(query, key, value, state)
        return out, replace(after, summed=torch.stack([state.summed, after.summed])[1])


@dataclass(frozen=True)
class Modest(MemoryState):
    """Sums that report half of their bytes."""

    @property
    def nbytes(self) -> int:
        return self.summed.nbytes // 2


@breaks("carried_states_stay_as_small_as_stated", "linear", "state.nbytes must be 576, the bytes of its tensors; got 288")
class HalvesItsBytes(Linear):
    """Reports half of the bytes of its state."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        out, after = super().advance(query, key, value, state)
        return out, Modest(after.summed, after.position)


def stateless(geometry: Geometry, options: Any) -> Cost:
    return replace(Linear.card.cost(geometry, options), state_bytes=None)


@breaks("carried_states_stay_as_small_as_stated", "linear", "its cost must state state_bytes", cost=stateless)
class HidesItsState(Linear):
    """Carries a state that its cost does not state."""


@breaks("steps_keep_examples_apart", "linear", "beside others 30 times as large against it alone, in steps")
class StartsAnew(Linear):
    """Guards against overflow by dropping all sums once any in the batch is large."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        out, after = super().advance(query, key, value, state)
        return out, replace(after, summed=after.summed * (after.summed.detach().abs().amax() < 2000))


@breaks("steps_keep_examples_apart", "linear", "an example in a batch against it alone, in steps")
class CarriesOneState(Linear):
    """Carries the mean of the states over the batch."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        out, after = super().advance(query, key, value, state)
        return out, replace(after, summed=after.summed.mean(dim=0, keepdim=True).expand_as(after.summed))


@breaks("unfit_steps_are_refused", "linear", "a state of fewer examples must raise ValueError, but it ran")
class BroadcastsItsState(Linear):
    """Accepts a state of one example for a whole batch."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        whole = state.summed[:1].expand(len(value), -1, -1, -1)
        return super().advance(query, key, value, replace(state, summed=whole))


@breaks("empty_batches_step_or_are_refused", "linear", "IndexError")
class LooksAtTheFirstState(Linear):
    """Reads the state of the first example, which an empty batch lacks."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        state.summed[0].any()
        return super().advance(query, key, value, state)


@breaks(
    "empty_batches_step_or_are_refused", "linear", "a step of no examples that ends at token 16: state.position must be 16; got 0"
)
class ReadsNothingOfNobody(Linear):
    """Returns the given state unchanged for an empty batch."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        out, after = super().advance(query, key, value, state)
        return out, after if len(value) else state


@breaks("empty_batches_step_or_are_refused", "linear", "no gradient reaches any input")
class AnswersNobodyAnew(Linear):
    """Returns a new tensor, without gradient, for an empty batch."""

    def advance(self, query: Any, key: Any, value: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, MemoryState]:
        out, after = super().advance(query, key, value, state)
        return out if len(value) else torch.zeros_like(out), after
